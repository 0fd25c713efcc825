"""The columns of an Append frame: which ones it has, where they are, and whether they are valid.

    directory   u32 length of each present column, padded to 8
    columns     in the order of `ORDER`, `data` last; each begins at a multiple of 8
    texts       [validity bitmap, padded][n + 1 int32 offsets, padded][bytes]; `data` has no bitmap

Invariant: columns that `find_columns` accepts fill their frame exactly and can be read without another check: offsets
begin at 0, never decrease and end where the column does. It never raises, whatever the bytes.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from struct import Struct

from driftq.storage.blocks.frame import HEAD_BYTES, Bits, Frame

DATA = 0
# Plain integers: a lookup of an enum member takes longer than most of the work here.
TS, TAG, NODE, BATCH_NODE = int(Bits.TS), int(Bits.TAG), int(Bits.NODE), int(Bits.BATCH_NODE)
META, KEY, WRITER, PLAIN = int(Bits.META), int(Bits.KEY), int(Bits.WRITER), int(Bits.PLAIN)

Spans = dict[int, tuple[int, int]]
"""Start and size of each column by its bit, counted from the frame's first byte."""


def up8(size: int) -> int:
    """Return the next multiple of 8."""
    return (size + 7) & ~7


ORDER = (TS, TAG, NODE, BATCH_NODE, META, KEY, WRITER)
_KNOWN = sum(Bits)
_TWO_NODES = NODE | BATCH_NODE
_TEXT_BITS = frozenset((DATA, TAG, NODE, META))
_ENDS = Struct("<ii").unpack_from


@cache
def shape_of(bits: int) -> tuple[tuple[int, ...], Callable[[bytes, int], tuple[int, ...]], int]:
    """Return the columns of these bits in order, the function that reads their directory, and where they begin."""
    present = (*(bit for bit in ORDER if bits & bit), DATA)
    return present, Struct(f"<{len(present)}I").unpack_from, HEAD_BYTES + up8(4 * len(present))


def find_columns(frame: bytes, bits: int, count: int) -> Spans | None:
    """Return the position of each column, or None if the columns are invalid or do not fill the frame exactly."""
    if bits & ~_KNOWN or bits & _TWO_NODES == _TWO_NODES or count == 0:
        return None
    present, unpack, cursor = shape_of(bits)
    limit = len(frame) - count - 8
    if cursor > limit:
        return None
    at: Spans = {}
    for bit, size in zip(present, unpack(frame, HEAD_BYTES), strict=True):
        if cursor + size > limit:
            return None
        if bit in _TEXT_BITS:
            if not _sound(frame, cursor, size, count, nullable=bit != DATA):
                return None
        elif bit == TS and size != 8 * count:
            return None
        at[bit] = (cursor, size)
        cursor += (size + 7) & ~7
    return at if limit - cursor == -count & 7 else None


def _sound(frame: bytes, start: int, size: int, count: int, *, nullable: bool) -> bool:
    """Whether the offsets of a text column never decrease, and end where the column does."""
    skip = up8((count + 7) >> 3) if nullable else 0
    text = size - skip - up8(4 * (count + 1))
    if text < 0:
        return False
    offsets = start + skip
    if count == 1:
        return _ENDS(frame, offsets) == (0, text)
    # All offsets as one integer with 32 bits each, and the same shifted by one offset. With the top bit of each 32 bits
    # set before the subtraction, no offset borrows from the next, and the bit is still set exactly where no offset
    # decreases.
    group_partitions = int.from_bytes(frame[offsets : offsets + 4 * count + 4], "little")
    tops, mask = _group_partitions(count)
    later = group_partitions >> 32
    return (
        not group_partitions & 0xFFFFFFFF
        and later >> 32 * (count - 1) == text
        and not later & tops
        and ((later | tops) - (group_partitions & mask)) & tops == tops
    )


@lru_cache(maxsize=8)
def _group_partitions(count: int) -> tuple[int, int]:
    """Return an integer with the top bit of each of `count` 32-bit offsets, and one with all their bits."""
    return int.from_bytes(b"\0\0\0\x80" * count, "little"), (1 << 32 * count) - 1


def read_one(buffer: bytes, header: Frame) -> tuple[bytes, bytes | None] | None:
    """Return data and tag of an accepted Append frame of one record without other columns: a short path for replay.

    Returns None for every other frame, valid or not: `Block.read` handles those and reports what is wrong with them.
    """
    _, bits, count, _, _, _, _, start, end, _ = header
    length = end - start
    if count != 1:
        return None
    if bits == PLAIN:
        size, zero, stop = _ONE_DATA(buffer, start + HEAD_BYTES)
        if zero or stop < 0 or stop != size - 8 or length != ((size + 7) & ~7) + _ONE_AROUND:
            return None
        return buffer[start + _ONE_FIRST + 8 : start + _ONE_FIRST + size], None
    if bits & ~PLAIN != TAG or length < _ONE_TAG_MIN:
        return None
    tag_size, size, valid, zero, stop = _ONE_TAG(buffer, start + HEAD_BYTES)
    padded = (tag_size + 7) & ~7
    if zero or stop < 0 or stop != tag_size - 16 or length != padded + ((size + 7) & ~7) + _ONE_AROUND:
        return None
    place = start + _ONE_FIRST + padded
    if size < 8 or _ENDS(buffer, place) != (0, size - 8):
        return None
    tag = buffer[start + _ONE_FIRST + 16 : start + _ONE_FIRST + tag_size] if valid & 1 else None
    return buffer[place + 8 : place + size], tag


_ONE_DATA = Struct("<I4xii").unpack_from
_ONE_TAG = Struct("<IIB7xii").unpack_from
_ONE_FIRST = HEAD_BYTES + 8
_ONE_AROUND = _ONE_FIRST + 7 + 8 + 1
_ONE_TAG_MIN = _ONE_AROUND + 16 + 8
