"""The frame: one checksummed unit in a WAL or segment file. `docs/formats/frame.md` shows the bytes.

    0   4  magic "DQF", version
    4   4  frame_len: bytes after this field, flags included
    8   2  kind                 10  2  column bits          12  4  count n
    16  8  topic_id             24  8  first_seq (Append) or op (control)
    32  8  ts                   40  8  synced_to: file number << 32 | offset
    48  8  XXH3-64 of bytes 0..48; in a WAL file of version 2 combined by XOR with the salt of that file
    56  …  directory: u32 per present column, then columns, each 8-aligned, then 0-7 zeros
        8  XXH3-64 of everything from 56 up to here, seeded with the header's checksum, without the salt
        n  delete flags: 0xD5 = deleted, anything else = live; outside the checksum, inside frame_len

The seed ties the columns to their header: the header of one frame before the columns of another, which two writes to
one place may leave, is not a frame. The size of a frame is a multiple of 8. `synced_to` contains the number of the file
that it refers to, because a frame may be queued while one file is written and be written to the next.

The salt (`storage/wal/wal_head`) makes the stored checksum of a header a number that only the server can compute. Bytes
that a client put into a tag are therefore never a frame of the log, whatever a crash leaves around them. A frame is
built, kept in memory and written to segments without a salt; the log writer adds it (`add_salt`), and `Block.read`
removes it again.

`read_frame` accepts a frame or returns what is wrong with it. It never raises on any bytes and never reads outside
them. Invariant: a frame that it accepts was made by some `encode_*` call, flags aside. It checks the header, the bounds
and the checksums, and the body of a control frame; `Block.read` checks the columns of an Append frame.
"""

from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

MAGIC = b"DQF\x01"
_MAGIC_NAME = MAGIC[:3]
VERSION = MAGIC[3]
HEADER = Struct("<4sIHHIQQQQ")
_HEADER_AND_SUM = Struct("<4sIHHIQQQQQ")
SUM = Struct("<Q")
LENGTH = Struct("<I")
HEAD_BYTES = HEADER.size + SUM.size
FRAME_BYTES_MIN = HEAD_BYTES + 8 + 8
NO_COLUMNS = 0
_COPIED_MAX = 8192
"""From this size on, a view is cheaper than a copy."""


class Kind(IntEnum):
    """The kind of a frame. Numbers are never reused; features own the ranges in `docs/formats/frame.md`."""

    APPEND = 1
    TOPIC = 2
    TOPIC_DELETE = 3
    DELETE = 4
    TIME_SEEN = 5
    CHECKPOINT_MARK = 6
    HEAD_WATERMARK = 7
    FILE_HEAD = 8
    HOLE = 9
    FLOORS = 10
    DRAINED = 11
    CLOCK = 12
    SPANS = 13


class Bits(IntEnum):
    """The columns of an Append frame, in their order. `data` is always present and always last."""

    TS = 1
    TAG = 2
    NODE = 4
    BATCH_NODE = 8
    META = 16
    KEY = 32
    WRITER = 64
    PLAIN = 128


class Frame(NamedTuple):
    """The header of an accepted frame, and its position in the buffer."""

    kind: int
    bits: int
    count: int  # type: ignore[assignment]
    topic_id: int
    seq: int
    ts: int
    synced_to: int
    start: int
    end: int
    salt: int = 0
    """The salt in the stored checksum of the header; 0 outside the WAL."""


class Bad(NamedTuple):
    """Why a frame was not accepted. `header` is set if the header's own checksum is right: then it can be trusted."""

    why: str
    header: Frame | None = None


class NewerVersion(NamedTuple):
    """A frame of a version this code does not know, with a valid header checksum."""

    version: int


def encode_frame(
    kind: int,
    columns: list[bytes],
    pieces: Sequence[bytes] = (),
    *,
    topic_id: int,
    seq: int,
    ts: int,
    synced_to: int = 0,
    bits: int = NO_COLUMNS,
    count: int = 0,
    flags: bytes = b"",
    magic: bytes = MAGIC,
) -> bytes:
    """Return a frame of these columns, each padded to 8, with its checksums. `flags`, if given, has a byte per record.

    `pieces` together are one more column. It is a large one, and joining it here saves a copy.
    """
    sizes = list(map(len, columns))
    if pieces:
        sizes.append(sum(map(len, pieces)))
    parts = [_directory(len(sizes)).pack(*sizes)]
    size = len(parts[0])
    for column in columns:
        parts.append(column)
        size += len(column)
        if size & 7:
            parts.append(_PADS[-size & 7])
            size += -size & 7
    if pieces:
        parts += pieces
        size += sizes[-1]
        parts.append(_PADS[-size & 7])
        size += -size & 7
    if count & 7:
        parts.append(_PADS[-count & 7])
        size += -count & 7
    assert len(flags) in (0, count), "a flag byte per record, or none at all"
    header = HEADER.pack(magic, HEAD_BYTES + size + count, kind, bits, count, topic_id, seq, ts, synced_to)
    head_sum = xxh3_64_intdigest(header)
    if not pieces:
        body = b"".join(parts)
        body_sum = xxh3_64_intdigest(body, head_sum)
        return b"".join((header, SUM.pack(head_sum), body, SUM.pack(body_sum), flags or bytes(count)))
    hashed = xxh3_64(seed=head_sum)
    for part in parts:
        hashed.update(part)
    return b"".join((header, SUM.pack(head_sum), *parts, SUM.pack(hashed.intdigest()), flags or bytes(count)))


_PADS = [bytes(size) for size in range(8)]


@cache
def _directory(columns: int) -> Struct:
    """Return the layout of the directory: a u32 for each column, padded to 8."""
    return Struct(f"<{columns}I{columns % 2 * 4}x")


def encode_control(
    kind: int, body: bytes, *, topic_id: int, op: int, ts: int, synced_to: int = 0, magic: bytes = MAGIC
) -> bytes:
    """Return a control frame: the same header, with one column for the body."""
    return encode_frame(kind, [body], topic_id=topic_id, seq=op, ts=ts, synced_to=synced_to, magic=magic)


def control_body(buffer: bytes, frame: Frame) -> bytes:
    """Return the body of an accepted control frame."""
    start = frame.start + HEAD_BYTES
    (size,) = LENGTH.unpack_from(buffer, start)
    return buffer[start + 8 : start + 8 + size]


def read_frame(
    buffer: bytes, start: int, end: int, salt: int = 0, *, version: bytes = MAGIC
) -> Frame | Bad | NewerVersion:
    """Return the frame at `start` of a buffer whose valid bytes end at `end`, or why it is not one.

    `salt` is the salt of the file. `version` is the magic to accept: `MAGIC`, except for the head of a WAL file.
    """
    if end - start < FRAME_BYTES_MIN:
        return _SHORT
    magic, length, kind, bits, count, topic_id, seq, ts, synced_to, head_sum = _unpack_header(buffer, start)
    if magic != version and magic[:3] != _MAGIC_NAME:
        return NO_MAGIC
    head_sum ^= salt
    if xxh3_64_intdigest(buffer[start : start + 48]) != head_sum:
        return _BAD_HEADER
    if magic != version:
        return NewerVersion(magic[3])
    stop = start + 8 + length
    frame = _new(Frame, (kind, bits, count, topic_id, seq, ts, synced_to, start, stop, salt))
    body, sum_at = start + HEAD_BYTES, stop - count - 8
    if stop > end or length & 7 or sum_at < body + 8:
        return Bad("its length is wrong", frame)
    columns = buffer[body:sum_at] if length < _COPIED_MAX else memoryview(buffer)[body:sum_at]
    if xxh3_64_intdigest(columns, head_sum) != _unpack_sum(buffer, sum_at)[0]:
        return Bad("the checksum of its columns does not match", frame)
    if kind == _APPEND:
        return frame if count else Bad("it has no records", frame)
    if count or bits or sum_at - body - 8 != LENGTH.unpack_from(buffer, body)[0] + 7 & ~7:
        return Bad("the length of its body is wrong", frame)
    return frame


def add_salt(content: bytearray | memoryview, salt: int) -> None:
    """Combine the header checksum of every frame in `content` with the salt, in place."""
    place, size = 0, len(content)
    while place < size:
        length, head_sum = _length_and_sum(content, place)
        _pack_sum(content, place + HEADER.size, head_sum ^ salt)
        place += 8 + length


def without_salt(buffer: bytes, frame: Frame) -> bytes:
    """Return the bytes of an accepted frame as they were before the log writer added the salt."""
    start, stop = frame.start, frame.end
    if not frame.salt:
        return buffer[start:stop] if start or stop != len(buffer) else buffer
    body = start + HEAD_BYTES
    head_sum = SUM.pack(_unpack_sum(buffer, start + HEADER.size)[0] ^ frame.salt)
    return b"".join((buffer[start : start + HEADER.size], head_sum, memoryview(buffer)[body:stop]))


_APPEND = int(Kind.APPEND)
_length_and_sum = Struct("<4xI40xQ").unpack_from
_pack_sum = SUM.pack_into
_new = tuple.__new__
_unpack_header = _HEADER_AND_SUM.unpack_from
_unpack_sum = SUM.unpack_from
_SHORT = Bad("too few bytes are left")
NO_MAGIC = Bad("no frame begins here")
_BAD_HEADER = Bad("the checksum of its header does not match")
