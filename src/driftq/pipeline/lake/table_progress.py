"""How far a table is with its topics: one mark per incarnation of a topic, in the table's transaction log.

    driftq-seq:<epoch>:<topic>   everything up to this seq is complete in the table
    driftq-topic:<topic>         the epoch that was written last: the table has this topic

A mark moves in the commit that adds the rows, so neither exists without the other. Rows at or below the mark are left
out of a batch, whichever query reads them.

Invariant: a commit moves a mark from the position at which its rows were cut. If another query has moved the mark
meanwhile, the commit is refused. If both commit at the same moment, Delta accepts only one of two commits with the same
mark.

With Spark Connect this code runs in the Connect server, pickled by value. So it uses no msgspec structs, which cannot
be pickled by value.
"""

from collections.abc import Iterable
from typing import NamedTuple

from deltalake import DeltaTable, Transaction

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.offsets import OffsetRange


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
    """Return the last seq that is complete in the table, or 0."""
    return table.transaction_version(_seq_name(topic, epoch)) or 0


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


def transactions(moves: Iterable[Move]) -> list[Transaction]:
    """Return the entries of the transaction log that a commit stores for these moves."""
    return [
        Transaction(name, value)
        for move in moves
        for name, value in (
            (_seq_name(move.topic, move.epoch), move.end),
            (_topic_name(move.topic), move.epoch),
        )
    ]


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
