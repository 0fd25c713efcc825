"""One segment of a topic in memory: where its blocks are, and which of their rows are gone.

    active → sealing → sealed (a durable pair) → cold            a hole or a delete may empty it at any point: dropped

`Dead` holds a flag byte per row, the same byte as on disk, but only for blocks that have lost rows. A row is gone when
it was deleted, or when retention removed it while the rest of its block stayed. Only the flags of deletes are set on
disk: rows that retention removed are below the topic's `earliest`, which is stored as one number.

Invariant: `live` is the number of rows in closed blocks that are not gone.
"""

from array import array
from collections.abc import Iterable
from itertools import count

from driftq.storage.blocks.block import Block
from driftq.storage.blocks.delete_flags import DELETED, DELETED_BYTE
from driftq.storage.segments.block_index import BlockIndex

_uids = count(1)


class Dead:
    """The rows of one block that are gone."""

    __slots__ = ("count", "flags", "payload")

    def __init__(self, flags: bytearray, payload: int = 0) -> None:
        self.flags = flags
        self.count = flags.count(DELETED)
        self.payload = payload

    def add(self, rows: Iterable[int], sizes: Iterable[int]) -> tuple[int, int]:
        """Mark rows as gone. Returns how many of them were live, and their payload bytes."""
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
        """Whether any of these consecutive rows is gone already."""
        return self.flags.find(DELETED_BYTE, rows[0], rows[-1] + 1) >= 0

    def add_run(self, rows: range, payload: int) -> tuple[int, int]:
        """Mark consecutive rows that are all live as gone: the same effect as `add`, but faster."""
        self.flags[rows[0] : rows[-1] + 1] = DELETED_BYTE * len(rows)
        self.count += len(rows)
        self.payload += payload
        return len(rows), payload

    def grow(self, rows: int) -> None:
        """Add flags for new rows of the open block; they are live."""
        self.flags.extend(bytes(rows))

    def first_live(self, row: int) -> int:
        """Return the first row from `row` on that is not gone; the number of rows when there is none."""
        rest = self.flags[row:]
        return len(self.flags) - len(rest.lstrip(DELETED_BYTE))


class Segment:
    """A seq range of one topic: closed blocks, and the progress of writing, sealing and moving their files."""

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
        """Blocks that are not in the file yet; in a resident segment, all blocks."""
        self.flips = array("Q")
        """Deleted seqs whose flag is not durable on disk yet, in the order of their deletes."""
        self.noted = 0
        """Number of leading entries of `flips` that the last captured checkpoint contains."""
        self.flippable = 0
        """Number of leading entries of `flips` in the newest durable checkpoint; only their flags may be set on disk.
        """
        self.flipping = False
        """Whether a thread is setting flags on disk."""
        self.resident = resident
        """Whether its records belong to an `ephemeral` topic and are never on disk."""
        self.begun_ms = begun_ms
        """Commit time of the first record; the age of the segment counts from it."""
        self.data_bytes = 0
        self.written_blocks = 0
        self.durable_blocks = 0
        self.writing = False
        self.given_up = False
        """Whether it was dropped with a damaged block in it; then its files are kept in `lost/`."""
        self.dropped = False
        """Whether its files are being removed or will be."""
        self.away = False
        """Whether another process is sealing it. This process must not sync it then: the kernel reports an error only
        once.
        """
        self.sealing = False
        self.sealed = False
        self.sealed_behind = 0
        """Number of the last capture before it was sealed (`SegmentFiles.captures`). Later ones contain it whole."""
        self.cold = False
        self.moving = False
        """Whether a thread is copying it to the cold tier."""
        self.named = False
        """Whether the newest durable checkpoint needs its files."""

    @property
    def end_seq(self) -> int:
        """Return the seq after its last closed row."""
        blocks = len(self.index)
        return self.index.end_seq(blocks - 1) if blocks else self.first_seq

    @property
    def last_ts(self) -> int:
        """Return the commit time of its last closed row; there must be one."""
        return self.index.last_ts(len(self.index) - 1)

    def add(self, block: Block, *, last_ts: int, payload: int) -> int:
        """Append a closed block. Returns its number."""
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
        """Return the gone rows of a block; creates the object if needed."""
        dead = self.dead.get(block)
        if dead is None:
            dead = self.dead[block] = Dead(bytearray(self.index.count(block)))
        return dead

    def live_in(self, block: int) -> tuple[int, int]:
        """Return the number of live rows of a block and their payload bytes."""
        dead = self.dead.get(block)
        if dead is None:
            return self.index.count(block), self.index.payload(block)
        return self.index.count(block) - dead.count, self.index.payload(block) - dead.payload

    def clear(self, block: int) -> tuple[int, int]:
        """Mark all rows of a block as gone. Returns how many were live, and their payload bytes."""
        records, payload = self.live_in(block)
        if records:
            dead = self.dead_of(block)
            dead.flags[:] = DELETED_BYTE * len(dead.flags)
            dead.count = len(dead.flags)
            dead.payload = self.index.payload(block)
            self.live -= records
        return records, payload

    def find(self, seq: int) -> tuple[int, int]:
        """Return the number of the block that contains a seq, and the row in it."""
        block = self.index.at_or_after(seq)
        return block, seq - self.index.first_seq(block)

    def flag_place(self, block: int, row: int) -> int:
        """Return the offset of a row's delete flag in `.data`."""
        offset, length = self.index.place(block)
        return offset + length - self.index.count(block) + row

    def row_number(self, block: int, row: int) -> int:
        """Return the row's number in the whole segment, which is the offset of its flag in a cold `.del`."""
        return sum(self.index.count(b) for b in range(block)) + row
