"""The tag index of a sealed segment: its row numbers sorted by tag, and enough of each tag for a binary search.

Row `r` is the record of seq `segment.first_seq + r`. All tags of a segment share a prefix, often a long one. Of the
bytes after it, 8 are kept per tag as a big-endian number, so that the order of the numbers is the order of the bytes.
That is 10 bytes per tag (12 above 65 536 rows). It answers most questions with certainty; where it cannot, the answer
is marked as uncertain.

    0   4  magic "DQT", version
    4   4  zeros
    8   8  XXH3-64 of everything from 16 on
    16  4  count n            20  4  bits: 1 = some tag is long, 2 = some key is ambiguous, 4 = rows are u32
    24  4  prefix length      28  4  length of the first tag      32  4  length of the last tag      36  4  zeros
    40  8n keys               then the rows, n times u16 or u32, then the first tag and the last tag

Entries are sorted by tag, then by row. `.tags` can always be made again from `.data`, so a damaged file counts as
absent, and no sync protects it. See `docs/formats/tags.md`.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from driftq.storage.blocks.block import RowSource
from driftq.storage.segments.tag_codes import Column

MAGIC = b"DQT\x01"
_PREAMBLE = Struct("<4s4xQ")
_HEADER = Struct("<IIIII4x")
_KEYS_AT = _PREAMBLE.size + _HEADER.size
KEY_BYTES = 8
LONG = 1
"""At least one tag is longer than prefix and key, so an equal key does not prove an equal tag."""
AMBIGUOUS = 2
"""The part of some tag in the key ends with a zero byte, which looks like padding."""
WIDE = 4
_KNOWN = LONG | AMBIGUOUS | WIDE
NARROW_ROWS = 1 << 16


class Candidates(NamedTuple):
    """Rows that may match, in the order of their tags. If not `certain`, the caller must compare the tags."""

    rows: Sequence[int]
    certain: bool


_NONE = Candidates((), certain=True)


def tag_rows(sources: Iterable[RowSource], first_seq: int) -> Iterator[tuple[bytes, int]]:
    """Yield every tag with its row number, counted from the segment's first seq."""
    for source in sources:
        tags = source.tags(0, source.count)
        if tags is not None:
            yield from [(tag, row) for row, tag in enumerate(tags, source.first_seq - first_seq) if tag is not None]


class TagIndex:
    """The rows of one segment, sorted by tag. Immutable."""

    __slots__ = ("_bits", "_keys", "_prefix", "_rows", "first", "last")

    def __init__(
        self, keys: "array[int]", rows: "array[int]", bits: int, ends: tuple[bytes, bytes], prefix: int
    ) -> None:
        self._keys = keys
        self._rows = rows
        self._bits = bits
        self.first, self.last = ends
        """The smallest tag and the largest tag."""
        self._prefix = self.first[:prefix]

    @staticmethod
    def build(tags: Iterable[tuple[bytes, int]]) -> "TagIndex":
        """Sort tags, given with their row numbers. For a thread: 10 000 tags take a few milliseconds."""
        entries = sorted(tags, key=itemgetter(1))
        if not entries:
            return TagIndex(array("Q"), array("H"), 0, (b"", b""), 0)
        # Latin-1 text compares like its bytes, and faster. The sort is stable: rows with equal tags stay in order.
        texts = [tag.decode("latin-1") for tag, _ in entries]
        order = sorted(range(len(entries)), key=texts.__getitem__)
        names = [entries[place][0] for place in order]
        rows = [entries[place][1] for place in order]
        first, last = names[0], names[-1]
        prefix = common_prefix(first, last)
        end = prefix + KEY_BYTES
        parts = [name[prefix:end] for name in names]
        bits = WIDE if max(rows) >= NARROW_ROWS else 0
        if max(map(len, names)) > end:
            bits |= LONG
        packed = b"".join(parts)
        if b"\0" in packed and any(part.endswith(b"\0") for part in parts):
            bits |= AMBIGUOUS
        if len(packed) != KEY_BYTES * len(parts):
            packed = b"".join([part.ljust(KEY_BYTES, b"\0") for part in parts])
        keys = array("Q", packed)[:]  # the copy has no spare room, unlike an array made from bytes
        keys.byteswap()
        return TagIndex(keys, array("I" if bits & WIDE else "H", rows), bits, (first, last), prefix)

    def encode(self) -> bytes:
        """Return the content of the `.tags` file."""
        body = b"".join(
            (
                _HEADER.pack(len(self._keys), self._bits, len(self._prefix), len(self.first), len(self.last)),
                self._keys.tobytes(),
                self._rows.tobytes(),
                self.first,
                self.last,
            )
        )
        return _PREAMBLE.pack(MAGIC, xxh3_64_intdigest(body)) + body

    @staticmethod
    def decode(content: bytes) -> "TagIndex | None":
        """Return the index in the content of a `.tags` file, or None if it is damaged or of another version."""
        if len(content) < _KEYS_AT:
            return None
        magic, checksum = _PREAMBLE.unpack_from(content)
        if magic != MAGIC or xxh3_64_intdigest(memoryview(content)[_PREAMBLE.size :]) != checksum:
            return None
        count, bits, prefix, first, last = _HEADER.unpack_from(content, _PREAMBLE.size)
        rows_at = _KEYS_AT + 8 * count
        first_at = rows_at + (4 if bits & WIDE else 2) * count
        last_at = first_at + first
        if last_at + last != len(content) or prefix > first or bits & ~_KNOWN:
            return None
        keys = array("Q", content[_KEYS_AT:rows_at])[:]
        rows = array("I" if bits & WIDE else "H", content[rows_at:first_at])[:]
        return TagIndex(keys, rows, bits, (content[first_at:last_at], content[last_at:]), prefix)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def nbytes(self) -> int:
        """Return the approximate size in memory, in bytes."""
        held = (self._keys, self._rows, self.first, self.last, self._prefix)
        return sys.getsizeof(self) + sum(map(sys.getsizeof, held))

    def may_match_prefix(self, prefix: bytes) -> bool:
        """Return False if no row's tag can begin with `prefix`. Cheaper than `prefix()`."""
        return self.first[: len(prefix)] <= prefix <= self.last and bool(self._keys)

    def exact(self, tag: bytes) -> Candidates:
        """Return the rows with this tag, in ascending order if certain."""
        if not self.first <= tag <= self.last or not tag.startswith(self._prefix):
            return _NONE
        part = tag[len(self._prefix) :]
        size = len(part)
        padded = part.endswith(b"\0")
        if size > KEY_BYTES and not self._bits & LONG:
            return _NONE
        if padded and size <= KEY_BYTES and not self._bits & AMBIGUOUS:
            return _NONE
        keys = self._keys
        key = int.from_bytes(part[:KEY_BYTES].ljust(KEY_BYTES, b"\0"), "big")
        start = bisect_left(keys, key)
        if start == len(keys) or keys[start] != key:
            return _NONE
        # A full key without padding proves the whole tag if no tag is longer. A shorter key proves that nothing follows
        # it, unless the padding may be zero bytes of a tag.
        doubt = self._bits & LONG or padded if size >= KEY_BYTES else self._bits & AMBIGUOUS
        return Candidates(self._rows[start : bisect_right(keys, key, start)], not doubt)

    def numbered(self, size: int, numbers: Mapping[bytes, int], *, wide: bool) -> "tuple[Column, int] | None":
        """Return the number in `numbers` of each row's tag, for `size` rows, and how many rows have a tag.

        Rows without a tag get 0. Returns None if a row has a tag that is not in `numbers`, or if the index alone does
        not prove the tag of a row.
        """
        column: Column = array("H", bytes(2 * size)) if wide else bytearray(size)
        left = len(self._keys)
        for tag, number in numbers.items():
            rows, certain = self.exact(tag)
            if not certain or (rows and rows[-1] >= size):
                return None
            left -= len(rows)
            if number:
                for row in rows:
                    column[row] = number
        return None if left else (column, len(self._keys))

    def prefix(self, prefix: bytes) -> Candidates:
        """Return the rows whose tag begins with `prefix`, in the order of their tags."""
        if not self.may_match_prefix(prefix):
            return _NONE
        common = self._prefix
        part = prefix[len(common) :]
        if not part:
            return Candidates(self._rows, certain=True) if common.startswith(prefix) else _NONE
        if not prefix.startswith(common):
            return _NONE
        size = len(part)
        if size > KEY_BYTES and not self._bits & LONG:
            return _NONE
        low = int.from_bytes(part[:KEY_BYTES].ljust(KEY_BYTES, b"\0"), "big")
        high = int.from_bytes(part[:KEY_BYTES].ljust(KEY_BYTES, b"\xff"), "big")
        start = bisect_left(self._keys, low)
        found = self._rows[start : bisect_right(self._keys, high, start)]
        # A prefix that ends with a zero byte also matches the padding of a shorter tag.
        return Candidates(found, not (size > KEY_BYTES or part.endswith(b"\0"))) if found else _NONE


def common_prefix(first: bytes, last: bytes) -> int:
    """Return the length of the prefix that two tags, and so all tags between them, share."""
    if first == last:
        return len(first)
    shorter = min(len(first), len(last))
    return next((place for place in range(shorter) if first[place] != last[place]), shorter)
