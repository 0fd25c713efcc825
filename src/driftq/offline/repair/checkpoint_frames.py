"""Finds the block frames of a checkpoint, even of a damaged one.

A checkpoint also contains bytes that clients chose and that are not frames: idempotency keys, names, results. A client
can make them look like frames, and frames in a checkpoint have no salt. So the structure decides where frames are:

1. If the structure can be decoded, with a valid checksum or not, the frames are those in the tails of its topics.
   Damage inside a record leaves the structure intact.
2. If the state of one topic cannot be decoded, its bytes are searched for frames of that topic only.
3. Only if the list of topics cannot be decoded, the whole file is searched for frames by their magic.

In all cases every frame must also pass its own checksums.
"""

from collections.abc import Iterator

from msgspec import DecodeError, Struct, msgpack

from driftq.engine.files.topic_checkpoint import decode_topic
from driftq.errors import NewerFormatError
from driftq.storage.blocks.frame import MAGIC, Frame, read_frame
from driftq.storage.snapshot_file import body_of

Found = tuple[bytes, Frame]
"""The bytes that contain a frame, and the frame, whose positions refer to these bytes."""


class _Body(Struct):
    topics: list[bytes]


def frames_by_magic(content: bytes, *, step: int = 8) -> Iterator[Frame]:
    """Yield every valid frame at any position that is a multiple of `step`."""
    place = 0
    while (place := content.find(MAGIC, place)) >= 0:
        found = read_frame(content, place, len(content)) if not place % step else None
        if isinstance(found, Frame):
            yield found
            place = found.end
        else:
            place += 1


def checkpoint_frames(content: bytes) -> Iterator[Found]:
    """Yield the frames of a checkpoint file, by the rules in the module docstring."""
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
    """Return the first entry of a topic's state, its id; None if it is not a number."""
    # An array of 15 entries starts with 0x9F; the number follows.
    for size in (1, 2, 3, 5, 9):
        try:
            return msgpack.decode(content[1 : 1 + size], type=int)
        except DecodeError:
            continue
    return None
