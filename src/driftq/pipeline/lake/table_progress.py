"""How far a table is with its topics: one mark per incarnation of a topic, in the table's transaction log.

    driftq-seq:<epoch>:<topic>   everything up to this seq is complete in the table
    driftq-topic:<topic>         the epoch that was written last: the table has this topic
    driftq-since:<epoch>:<topic> rows above this seq are counted and summed: 0, or the mark that version 0.1.0 left
    driftq-rows:<epoch>:<topic>  number of these rows
    driftq-sum:<epoch>:<topic>   their checksum (`lake.row_sums`), which does not depend on files or order

A mark moves in the commit that adds the rows, so neither exists without the other. Rows at or below the mark are left
out of a batch, whichever query reads them.

Invariant: a commit moves a mark from the position at which its rows were cut. If another query has moved the mark
meanwhile, the commit is refused. If both commit at the same moment, Delta accepts only one of two commits with the same
mark.

With Spark Connect this code runs in the Connect server, pickled by value. So it uses no msgspec structs, which cannot
be pickled by value.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
from deltalake import DeltaTable, Transaction

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.lake.row_sums import RowSum
from driftq.pipeline.offsets import OffsetRange

_COUNTED = ("since", "rows", "sum")


class Move(NamedTuple):
    """How a batch moves the mark of a topic: from `found` to `end`. Rows above `cut` are new."""

    topic: str
    epoch: int
    found: int
    cut: int
    end: int

    @property
    def anew(self) -> bool:
        """Whether the mark belongs to an earlier incarnation of the topic, so that all rows of the batch are new."""
        return self.cut < self.found


def mark_of(table: DeltaTable, topic: str, epoch: int) -> int:
    """Return the seq up to which the table has all records of `topic` in `epoch`; 0 without a mark for that epoch."""
    return table.transaction_version(_seq_name(topic, epoch)) or 0


class Counted(NamedTuple):
    """What a table recorded about an incarnation of a topic: count and checksum of its rows above seq `since`."""

    since: int
    sum: RowSum


def counted(table: DeltaTable, topic: str, epoch: int) -> Counted:
    """Return what the table recorded. A table of version 0.1.0 has recorded nothing up to its mark."""
    names = (f"driftq-{what}:{epoch}:{topic}" for what in _COUNTED)
    since, rows, total = (table.transaction_version(name) for name in names)
    if since is None:
        return Counted(mark_of(table, topic, epoch), RowSum())
    return Counted(since, RowSum(rows or 0, total or 0))


def recorded(table: DeltaTable) -> dict[tuple[str, int], int]:
    """Return the marks of all incarnations of all topics in the table, by topic and epoch."""
    found: dict[tuple[str, int], int] = {}
    for name, version in _transactions_of(Path(table.table_uri.removeprefix("file://"))).items():
        kind, _, rest = name.partition(":")
        epoch, _, topic = rest.partition(":")
        if kind == "driftq-seq":
            found[topic, int(epoch)] = version
    return found


def _transactions_of(path: Path) -> dict[str, int]:
    """Return all entries of the transaction log; deltalake has no call that lists them."""
    log = path / "_delta_log"
    found: dict[str, int] = {}
    checkpoints = [(int(file.name.partition(".")[0]), file) for file in log.glob("*.checkpoint*.parquet")]
    start = max((number for number, _ in checkpoints), default=-1)
    for file in (file for number, file in checkpoints if number == start):
        for row in pq.read_table(file, columns=["txn"])["txn"].to_pylist():
            if row is not None:
                found[row["appId"]] = row["version"]
    for commit in sorted(log.glob("[0-9]*.json")):
        if int(commit.stem) > start:
            for line in commit.read_bytes().splitlines():
                action = json.loads(line).get("txn")
                if action is not None:
                    found[action["appId"]] = action["version"]
    return found


def holds(table: DeltaTable, topic: str) -> bool:
    """Whether the table has ever stored records of a topic."""
    return table.transaction_version(_topic_name(topic)) is not None


def move_of(part: OffsetRange, found: int, *, anew: bool = False) -> Move:
    """Return what a range that a batch reads does to a mark at `found`.

    A topic that lost its tail in a crash continues below its old head in the same epoch. The mark belongs to the
    earlier incarnation if it is not below the seq where the query stopped reading that one, or if another table shows
    this (`anew`). Then all rows of the batch are new.
    """
    missed = part.missed
    if missed is not None and missed.epoch == part.epoch and (anew or found >= missed.seq):
        return Move(part.topic, part.epoch, found, 0, part.end)
    return Move(part.topic, part.epoch, found, found, max(found, part.end))


def transactions(table: DeltaTable, moves: Iterable[Move], sums: Mapping[str, RowSum]) -> list[Transaction]:
    """Return the entries of the transaction log that a commit stores for these moves. `sums` has its rows, by topic."""
    return [
        Transaction(name, value)
        for move in moves
        for name, value in (
            (_seq_name(move.topic, move.epoch), move.end),
            (_topic_name(move.topic), move.epoch),
            *_counts(move.topic, move.epoch, counted(table, move.topic, move.epoch), sums.get(move.topic, RowSum())),
        )
    ]


def without(table: DeltaTable, gone: Mapping[tuple[str, int], RowSum]) -> list[Transaction]:
    """Return the entries for a commit that removes rows, given by topic and epoch."""
    return [
        Transaction(name, value)
        for (topic, epoch), removed in gone.items()
        for known in (counted(table, topic, epoch),)
        for name, value in _entries(topic, epoch, Counted(known.since, known.sum.minus(removed)))
    ]


def restated(topic: str, epoch: int, mark: int, now: RowSum) -> list[Transaction]:
    """Return the entries of an incarnation whose rows were all written again: its mark, their count and checksum."""
    entries = [(_seq_name(topic, epoch), mark), *_entries(topic, epoch, Counted(0, now))]
    return [Transaction(name, value) for name, value in entries]


def _counts(topic: str, epoch: int, known: Counted, more: RowSum) -> list[tuple[str, int]]:
    return _entries(topic, epoch, Counted(known.since, known.sum.plus(more)))


def _entries(topic: str, epoch: int, now: Counted) -> list[tuple[str, int]]:
    values = (now.since, now.sum.rows, now.sum.total)
    return [(f"driftq-{what}:{epoch}:{topic}", value) for what, value in zip(_COUNTED, values, strict=True)]


def check(table: DeltaTable, moves: Iterable[Move]) -> None:
    """Check that the marks have not moved since they were read. Raises PipelineError."""
    for move in moves:
        if mark_of(table, move.topic, move.epoch) != move.found:
            raise collision(move.topic)


def collision(topic: str) -> PipelineError:
    """Return the error for two queries that write the same topic to the same table."""
    return PipelineError(
        f"another query is writing topic {topic!r} to the same table, so this batch was not written: "
        "stop one of the queries, then start this one again"
    )


def _seq_name(topic: str, epoch: int) -> str:
    return f"driftq-seq:{epoch}:{topic}"


def _topic_name(topic: str) -> str:
    return f"driftq-topic:{topic}"
