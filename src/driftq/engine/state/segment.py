"""One segment of a topic in memory: where its blocks are, which of their rows are gone, and the state of its files.

    ACTIVE → SEALING → SEALED → COLD            without live records, from any of them: DROPPED

| state   | meaning                                                    | entered by                                  |
|---------|------------------------------------------------------------|---------------------------------------------|
| ACTIVE  | new records go to it                                       | creation                                    |
| SEALING | it is complete; its files are not                          | `close` from ACTIVE                         |
| SEALED  | `.data` and `.idx` are complete and durable                | `seal` from SEALING, `restore` from ACTIVE  |
| COLD    | its blocks are in the cold tier; the hot files are removed | `move` from SEALED, `restore` from ACTIVE   |
| DROPPED | its files are removed, or will be                          | `drop` from any other; in ACTIVE only from  |
|         |                                                            | recovery, for a segment that it gave up     |

Independent of the state, file work is under way (`work`, `begin`, `end`); a state changes when work ends.

| work      | may begin in     | not during             |                                                             |
|-----------|------------------|------------------------|-------------------------------------------------------------|
| WRITE     | ACTIVE, SEALING  | WRITE, SEAL            | a thread or process writes closed blocks                    |
| SEAL      | SEALING          | WRITE, SEAL            | it is being sealed, or waits for that                       |
| SEAL_AWAY | SEALING          | SEAL_AWAY              | a part of SEAL: another process seals it. This process must |
|           |                  |                        | not sync it then: the kernel reports an error only once     |
| FLAG      | all but DROPPED  | FLAG, MOVE, SEAL_AWAY  | a thread sets delete flags in its file                      |
| MOVE      | SEALED           | MOVE                   | a thread copies it to the cold tier                         |

Four facts are neither. `resident` never changes, and `named` follows the checkpoints. `cold` and `given_up` are needed
in state DROPPED too: where the blocks are that readers still hold, and whether the files are kept.

`Dead` holds a flag byte per row, the same byte as on disk, but only for blocks that have lost rows. A row is gone when
it was deleted, or when retention removed it while the rest of its block stayed. Only the flags of deletes are set on
disk: rows that retention removed are below the topic's `earliest`, which is stored as one number.

Invariant: `live` is the number of rows in closed blocks that are not gone.
"""

from array import array
from collections.abc import Iterable
from enum import Enum, auto
from itertools import count

from driftq.storage.blocks.block import Block
from driftq.storage.blocks.delete_flags import DELETED, DELETED_BYTE
from driftq.storage.segments.block_index import BlockIndex

_uids = count(1)


class SegmentPhase(Enum):
    """The states of a segment, in their order."""

    ACTIVE = auto()
    SEALING = auto()
    SEALED = auto()
    COLD = auto()
    DROPPED = auto()


class FileWork(Enum):
    """Work on the files of a segment."""

    WRITE = auto()
    SEAL = auto()
    SEAL_AWAY = auto()
    FLAG = auto()
    MOVE = auto()


# Looking up an enum member costs as much as a function call.
ACTIVE, SEALING, SEALED, COLD, DROPPED = SegmentPhase
WRITE, SEAL, SEAL_AWAY, FLAG, MOVE = FileWork

_MAY_BEGIN = {
    WRITE: ({ACTIVE, SEALING}, {WRITE, SEAL}),
    SEAL: ({SEALING}, {WRITE, SEAL}),
    SEAL_AWAY: ({SEALING}, {SEAL_AWAY}),
    FLAG: ({ACTIVE, SEALING, SEALED, COLD}, {FLAG, MOVE, SEAL_AWAY}),
    MOVE: ({SEALED}, {MOVE}),
}
"""For each work, the states in which it may begin, and the work during which it may not."""
_NONE: frozenset[FileWork] = frozenset()


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
        "begun_ms",
        "cold",
        "data_bytes",
        "dead",
        "durable_blocks",
        "first_seq",
        "flippable",
        "flips",
        "given_up",
        "index",
        "live",
        "named",
        "noted",
        "pending",
        "resident",
        "sealed_behind",
        "state",
        "uid",
        "work",
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
        self.state = ACTIVE
        self.work = _NONE
        """The file work under way. Work on a dropped segment may be left out; then it stays here."""
        self.cold = False
        """Whether its blocks are in the cold tier. A reader may still hold blocks of a dropped segment."""
        self.resident = resident
        """Whether its records belong to an `ephemeral` topic and are never on disk."""
        self.begun_ms = begun_ms
        """Commit time of the first record; the age of the segment counts from it."""
        self.data_bytes = 0
        self.written_blocks = 0
        self.durable_blocks = 0
        self.given_up = False
        """Whether it was dropped with a damaged block in it; then its files are kept in `lost/`."""
        self.sealed_behind = 0
        """Number of the last capture before it was sealed (`SegmentFiles.captures`). Later ones contain it whole."""
        self.named = False
        """Whether the newest durable checkpoint needs its files."""

    # The state

    def close(self) -> None:
        """Take no more records: ACTIVE → SEALING."""
        assert self.state is ACTIVE, self.state
        self.state = SEALING

    def seal(self, capture: int) -> None:
        """Note that its files are complete and durable, after this capture: SEALING → SEALED."""
        assert self.state is SEALING, self.state
        self.state = SEALED
        self.sealed_behind = capture
        self.durable_blocks = len(self.index)

    def move(self, index: BlockIndex) -> None:
        """Use the copy in the cold tier from now on, which has this index: SEALED → COLD."""
        assert self.state is SEALED, self.state
        self.state, self.cold = COLD, True
        self.index = index
        self.written_blocks = self.durable_blocks = len(index)

    def restore(self, *, cold: bool) -> None:
        """Continue as a segment that an earlier run has sealed, and moved if `cold`: ACTIVE → SEALED or COLD."""
        assert self.state is ACTIVE, self.state
        self.state, self.cold = COLD if cold else SEALED, cold

    def drop(self, *, given_up: bool) -> None:
        """Note that its files are removed or will be, or are kept in `lost/` if given up: any state → DROPPED."""
        assert self.state is not DROPPED
        self.state, self.given_up = DROPPED, given_up

    @property
    def sealed(self) -> bool:
        """Whether its files are complete and durable, in either tier."""
        return self.state is SEALED or self.state is COLD

    # Work on its files

    def may_begin(self, work: FileWork) -> bool:
        """Whether this work may begin in the present state, next to the work under way."""
        states, excluded = _MAY_BEGIN[work]
        return self.state in states and self.work.isdisjoint(excluded)

    def begin(self, work: FileWork) -> None:
        """Note that work has begun."""
        assert self.may_begin(work), (work, self.state, self.work)
        self.work |= {work}

    def end(self, work: FileWork) -> None:
        """Note that work has ended."""
        assert work in self.work, (work, self.work)
        self.work = (self.work - {work}) or _NONE

    @property
    def writing(self) -> bool:
        """Whether its blocks are being written or sealed."""
        return WRITE in self.work or SEAL in self.work

    # Its blocks

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
