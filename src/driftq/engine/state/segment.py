"""One segment of a topic as memory knows it: where its blocks are, which of their rows are gone.

    active → sealing → sealed (a durable pair) → cold            a hole or a delete may empty it at any point: dropped

`Dead` holds a flag byte per row, the same byte as on disk, for those blocks only that have lost rows. A row is gone
when it was deleted, or when retention passed it while the rest of its block stayed. Only deletes are flipped on disk:
what retention took lies below the topic's `earliest`, which says the same with one number.

Invariant: `live` is the number of rows in closed blocks that are not gone.
"""

from array import array
from collections.abc import Iterable
from itertools import count

from driftq.storage.blocks.block import Block
from driftq.storage.blocks.frame import DELETED
from driftq.storage.segments.block_index import BlockIndex

_uids = count(1)


class Dead:
    """The gone rows of one block."""

    __slots__ = ("count", "flags", "payload")

    def __init__(self, flags: bytearray, payload: int = 0) -> None:
        self.flags = flags
        self.count = flags.count(DELETED)
        self.payload = payload

    def add(self, rows: Iterable[int], sizes: Iterable[int]) -> tuple[int, int]:
        """Mark rows; those gone already do not count. Returns how many were new, and their payload bytes."""
        flags = self.flags
        records = payload = 0
        for row, size in zip(rows, sizes, strict=True):
            if flags[row] != DELETED:
                flags[row] = DELETED
                records += 1
                payload += size
        self.count += records
        self.payload += payload
        return records, payload

    def any_in(self, rows: range) -> bool:
        """Is any of these rows, which follow each other, gone already?"""
        return self.flags.find(_GONE, rows[0], rows[-1] + 1) >= 0

    def add_run(self, rows: range, payload: int) -> tuple[int, int]:
        """Mark rows that follow each other and are all live: what `add` does, for less."""
        self.flags[rows[0] : rows[-1] + 1] = _GONE * len(rows)
        self.count += len(rows)
        self.payload += payload
        return len(rows), payload

    def grow(self, rows: int) -> None:
        """The open block has got more rows; they are live."""
        self.flags.extend(bytes(rows))

    def first_live(self, row: int) -> int:
        """The first row from `row` on that is not gone; the number of rows when there is none."""
        rest = self.flags[row:]
        return len(self.flags) - len(rest.lstrip(_GONE))


_GONE = bytes([DELETED])


class Segment:
    """A seq range of one topic: closed blocks, and for the active one the file they go to."""

    __slots__ = (
        "away",
        "begun_ms",
        "cold",
        "data_bytes",
        "dead",
        "dropped",
        "durable_blocks",
        "first_seq",
        "flippable",
        "flipping",
        "flips",
        "given_up",
        "index",
        "live",
        "moving",
        "named",
        "noted",
        "pending",
        "resident",
        "sealed",
        "sealed_behind",
        "sealing",
        "uid",
        "writing",
        "written_blocks",
    )

    def __init__(self, first_seq: int, *, resident: bool = False, begun_ms: int = 0) -> None:
        self.uid = next(_uids)
        self.first_seq = first_seq
        self.index = BlockIndex()
        self.live = 0
        self.dead: dict[int, Dead] = {}
        self.pending: dict[int, Block] = {}
        """Blocks that are not in the file yet, or never will be in a resident segment."""
        self.flips = array("Q")
        """Deleted seqs whose flag is not durable on disk yet, in the order of their deletes."""
        self.noted = 0
        """So many of them, from the first on, does the last capture show."""
        self.flippable = 0
        """So many does the newest durable checkpoint show; only their flags may be set."""
        self.flipping = False
        """Is a thread setting flags?"""
        self.resident = resident
        """Records of an `ephemeral` topic: never on disk."""
        self.begun_ms = begun_ms
        """Commit time of the first record: what its age is counted from."""
        self.data_bytes = 0
        self.written_blocks = 0
        self.durable_blocks = 0
        self.writing = False
        self.given_up = False
        """Was it dropped with a hole of damage in it? Then its files are kept in `lost/`."""
        self.dropped = False
        """Are its files being removed, or will they be?"""
        self.away = False
        """Is it being sealed by another process? Then nobody here syncs it: the kernel tells of a failure once."""
        self.sealing = False
        self.sealed = False
        self.sealed_behind = 0
        """The capture it was sealed behind (`Filing.captures`): a later one names it whole."""
        self.cold = False
        self.moving = False
        """Is a thread copying it to the cold tier?"""
        self.named = False
        """Does the newest durable checkpoint count on its files?"""

    @property
    def end_seq(self) -> int:
        """One more than the seq of its last closed row."""
        blocks = len(self.index)
        return self.index.end_seq(blocks - 1) if blocks else self.first_seq

    @property
    def last_ts(self) -> int:
        """Commit time of its last closed row, of which there must be one."""
        return self.index.last_ts(len(self.index) - 1)

    def add(self, block: Block, *, last_ts: int, payload: int) -> int:
        """A closed block, behind the others. Returns its number."""
        number = len(self.index)
        length = len(block.frame)
        self.index.add(
            first_seq=block.first_seq,
            count=block.count,
            offset=self.data_bytes,
            length=length,
            first_ts=block.ts,
            last_ts=last_ts,
            payload=payload,
        )
        self.data_bytes += length
        self.pending[number] = block
        self.live += block.count
        return number

    def dead_of(self, block: int) -> Dead:
        """The gone rows of a block, made when there were none."""
        dead = self.dead.get(block)
        if dead is None:
            dead = self.dead[block] = Dead(bytearray(self.index.count(block)))
        return dead

    def live_in(self, block: int) -> tuple[int, int]:
        """Live rows of a block and their payload bytes."""
        dead = self.dead.get(block)
        if dead is None:
            return self.index.count(block), self.index.payload(block)
        return self.index.count(block) - dead.count, self.index.payload(block) - dead.payload

    def clear(self, block: int) -> tuple[int, int]:
        """All rows of a block are gone. Returns how many were live, and their payload bytes."""
        records, payload = self.live_in(block)
        if records:
            dead = self.dead_of(block)
            dead.flags[:] = _GONE * len(dead.flags)
            dead.count = len(dead.flags)
            dead.payload = self.index.payload(block)
            self.live -= records
        return records, payload

    def find(self, seq: int) -> tuple[int, int]:
        """The block that holds a seq, and the row in it."""
        block = self.index.at_or_after(seq)
        return block, seq - self.index.first_seq(block)

    def flag_place(self, block: int, row: int) -> int:
        """Where the delete flag of a row stands in `.data`."""
        offset, length = self.index.place(block)
        return offset + length - self.index.count(block) + row

    def row_number(self, block: int, row: int) -> int:
        """The row's place among all rows of the segment: where its flag stands in a cold `.del`."""
        return sum(self.index.count(b) for b in range(block)) + row
