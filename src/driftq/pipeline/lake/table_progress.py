"""How far a table is with its topics: a mark for each life of a topic, in the table's transaction log.

    driftq-seq:<epoch>:<topic>   everything up to this seq is settled in the table
    driftq-topic:<topic>         the epoch that was written last: the table has this topic

A mark moves in the commit that brings the rows, so neither is there without the other. What is not behind the mark is
left out of a batch, whichever query reads it.

Invariant: a commit moves a mark from where its rows were cut. Where another query has moved it meanwhile, the commit is
refused; where both commit at the same moment, by Delta, which lets one of two commits with the same mark pass.

Over Spark Connect this runs in the server, where it has come by value: no structs of msgspec, which do not.
"""

from collections.abc import Iterable
from typing import NamedTuple

from deltalake import DeltaTable, Transaction

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.offsets import OffsetRange


class Move(NamedTuple):
    """What a batch does to the mark of a topic: it was found, rows behind `cut` are new, and it goes to `end`."""

    topic: str
    epoch: int
    found: int
    cut: int
    end: int

    @property
    def anew(self) -> bool:
        """Is the mark that was found of an earlier life?"""
        return self.cut < self.found


def mark_of(table: DeltaTable, topic: str, epoch: int) -> int:
    """The last seq that is settled; 0 where nothing is."""
    return table.transaction_version(_seq_name(topic, epoch)) or 0


def holds(table: DeltaTable, topic: str) -> bool:
    """Has the table ever got something of a topic?"""
    return table.transaction_version(_topic_name(topic)) is not None


def move_of(part: OffsetRange, found: int, *, anew: bool = False) -> Move:
    """What a range that a batch reads does to a mark.

    A topic that has lost its end in a crash goes on below it in the same epoch. What the mark says is of the life
    before then, if it is not below the place where that was left, or if another mark says so: all that the batch
    brings is new.
    """
    missed = part.missed
    if missed is not None and missed.epoch == part.epoch and (anew or found >= missed.seq):
        return Move(part.topic, part.epoch, found, 0, part.end)
    return Move(part.topic, part.epoch, found, found, max(found, part.end))


def transactions(moves: Iterable[Move]) -> list[Transaction]:
    """What a commit carries."""
    return [
        Transaction(name, value)
        for move in moves
        for name, value in (
            (_seq_name(move.topic, move.epoch), move.end),
            (_topic_name(move.topic), move.epoch),
        )
    ]


def check(table: DeltaTable, moves: Iterable[Move]) -> None:
    """Are the marks where they were found? Raises PipelineError."""
    for move in moves:
        if mark_of(table, move.topic, move.epoch) != move.found:
            raise collision(move.topic)


def collision(topic: str) -> PipelineError:
    """Two queries at once."""
    return PipelineError(
        f"another query writes topic {topic!r} into the same table at this moment, and nothing is written twice: "
        "stop one of them, and start this one again"
    )


def _seq_name(topic: str, epoch: int) -> str:
    return f"driftq-seq:{epoch}:{topic}"


def _topic_name(topic: str) -> str:
    return f"driftq-topic:{topic}"
