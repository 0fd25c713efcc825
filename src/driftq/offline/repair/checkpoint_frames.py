"""Find the block frames of a checkpoint, a damaged one too.

A checkpoint carries bytes that clients chose outside its frames as well: idempotency keys, names, results. A client can
make them look like frames, and frames in a checkpoint have no salt. So its structure says where frames are:

1. If the structure can be decoded, checksum or not, the frames are those in the tails of its topics. Damage inside a
   record leaves the structure whole.
2. Where the state of one topic cannot be decoded, its bytes are searched for frames of that topic alone.
3. Only where the list of topics cannot be decoded, the whole file is searched for frames by their magic.

Every frame is proven by its checksums besides.
"""

from collections.abc import Iterator

from msgspec import DecodeError, Struct, msgpack

from driftq.engine.files.topic_checkpoint import decode_topic
from driftq.errors import NewerFormatError
from driftq.storage.blocks.frame import MAGIC, Frame, read_frame
from driftq.storage.snapshot_file import body_of

Found = tuple[bytes, Frame]
"""A frame, and the bytes that its places refer to."""


class _Body(Struct):
    topics: list[bytes]


def frames_by_magic(content: bytes, *, step: int = 8) -> Iterator[Frame]:
    """Yield every sound frame, wherever one begins; `step` is what their places are multiples of."""
    place = 0
    while (place := content.find(MAGIC, place)) >= 0:
        found = read_frame(content, place, len(content)) if not place % step else None
        if isinstance(found, Frame):
            yield found
            place = found.end
        else:
            place += 1


def checkpoint_frames(content: bytes) -> Iterator[Found]:
    """Yield the frames of a checkpoint file, as the module says."""
    try:
        topics = msgpack.decode(body_of(content), type=_Body).topics
    except (DecodeError, UnicodeDecodeError):
        yield from ((content, frame) for frame in frames_by_magic(content, step=1))
        return
    for topic in topics:
        yield from _of_topic(topic)


def _of_topic(content: bytes) -> Iterator[Found]:
    try:
        tail = decode_topic(content).tail
    except (DecodeError, UnicodeDecodeError, NewerFormatError):
        topic_id = _topic_id(content)
        frames = frames_by_magic(content, step=1)
        yield from ((content, frame) for frame in frames if topic_id in (None, frame.topic_id))
        return
    for one in tail:
        frame = read_frame(one, 0, len(one))
        if isinstance(frame, Frame):
            yield one, frame


def _topic_id(content: bytes) -> int | None:
    """Return the first entry of the state of a topic, None if it is not a number any more."""
    # An array of 15 entries is 0x9F, then the number.
    for size in (1, 2, 3, 5, 9):
        try:
            return msgpack.decode(content[1 : 1 + size], type=int)
        except DecodeError:
            continue
    return None
