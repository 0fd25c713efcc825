"""The index of a segment: one entry of seven numbers per block, in one flat array and, on disk, in `.idx`.

    first_seq, count, file offset, frame length, first ts, last ts, payload bytes        u64 each, little-endian

`.idx` file: magic "DQI" + version, u32 number of entries, XXH3-64 of the entries, the entries. Finding a seq is one
bisection over blocks plus arithmetic. See `docs/formats/segment.md`.
"""

import sys
from array import array
from bisect import bisect_right
from struct import Struct

from xxhash import xxh3_64_intdigest

MAGIC = b"DQI\x01"
STRIDE = 7
_HEADER = Struct("<4sIQ")

assert sys.byteorder == "little", "the on-disk formats are little-endian, and so must the machine be"


class BlockIndex:
    """The blocks of one segment, in order of their seqs."""

    __slots__ = ("cells",)

    def __init__(self, cells: "array[int] | None" = None) -> None:
        self.cells = array("Q") if cells is None else cells

    def __len__(self) -> int:
        return len(self.cells) // STRIDE

    def add(
        self, *, first_seq: int, count: int, offset: int, length: int, first_ts: int, last_ts: int, payload: int
    ) -> None:
        """Add a block after the others."""
        self.cells.extend((first_seq, count, offset, length, first_ts, last_ts, payload))

    def first_seq(self, block: int) -> int:
        """Return the seq of the block's first record."""
        return self.cells[STRIDE * block]

    def count(self, block: int) -> int:
        """Return the number of records in the block."""
        return self.cells[STRIDE * block + 1]

    def end_seq(self, block: int) -> int:
        """Return the seq of the block's last record, plus one."""
        cell = STRIDE * block
        return self.cells[cell] + self.cells[cell + 1]

    def place(self, block: int) -> tuple[int, int]:
        """Return offset and length of the block's frame in the file."""
        cell = STRIDE * block
        return self.cells[cell + 2], self.cells[cell + 3]

    def first_ts(self, block: int) -> int:
        """Return the commit time of the block's first record."""
        return self.cells[STRIDE * block + 4]

    def last_ts(self, block: int) -> int:
        """Return the commit time of the block's last record."""
        return self.cells[STRIDE * block + 5]

    def payload(self, block: int) -> int:
        """Return the block's payload bytes, deleted records included."""
        return self.cells[STRIDE * block + 6]

    def head(self, blocks: int) -> bytes:
        """Return the entries of the first `blocks` blocks, as bytes."""
        return self.cells[: STRIDE * blocks].tobytes()

    def at_or_after(self, seq: int) -> int:
        """Return the block that contains a seq, else the first block after it, else the number of blocks."""
        cells = self.cells
        block = bisect_right(range(len(cells) // STRIDE), seq, key=lambda i: cells[STRIDE * i]) - 1
        if block >= 0 and seq < self.end_seq(block):
            return block
        return block + 1


def encode_index(index: BlockIndex) -> bytes:
    """Return the content of the `.idx` file."""
    entries = index.cells.tobytes()
    return _HEADER.pack(MAGIC, len(index), xxh3_64_intdigest(entries)) + entries


def decode_index(content: bytes) -> BlockIndex | None:
    """Return the index in the content of an `.idx` file, or None if it is damaged."""
    if len(content) < _HEADER.size:
        return None
    magic, count, checksum = _HEADER.unpack_from(content)
    entries = content[_HEADER.size :]
    if magic != MAGIC or len(entries) != 8 * STRIDE * count or xxh3_64_intdigest(entries) != checksum:
        return None
    return BlockIndex(array("Q", entries))
