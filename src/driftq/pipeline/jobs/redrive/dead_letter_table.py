"""Dead letters of queues and of the broker as one table to select from, and the interface that moves them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from driftq.pipeline.runs.job import JobRun

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LETTERS = (
    "dlq",
    "seq",
    "ts",
    "age_s",
    "origin",
    "origin_seq",
    "deliveries",
    "reason",
    "tenant",
    "run_id",
    "failed_group",
    "tag",
    "data",
)
"""Columns that a condition can use."""
_PAGE = 10_000


class DeadLetterRow(Struct, frozen=True, array_like=True):
    """A letter in a note: its seq, and its origin."""

    seq: int
    origin: str
    origin_seq: int | None


class Mover(Protocol):
    """Moves the letters of one dead-letter topic."""

    def letters(self) -> "DataFrame":
        """Return the letters that can probably be moved, without a check of each one. Columns: `LETTERS`."""
        ...

    def waiting(self, letters: Sequence[DeadLetterRow]) -> Sequence[DeadLetterRow]:
        """Return those of the letters that are really waiting to be moved."""
        ...

    def finish(self) -> int:
        """Finish the moves that an earlier redrive noted and did not complete. Return how many letters were moved."""
        ...

    def move(self, letters: Sequence[DeadLetterRow]) -> Iterator[tuple[int, int]]:
        """Move letters step by step. Yields how many were moved and how many failed. Ends on a stop request."""
        ...


def selected(mover: Mover, where: str | None, limit: int | None) -> list[DeadLetterRow]:
    """Return the letters that the condition selects, oldest first."""
    rows = mover.letters()
    if where is not None:
        rows = rows.where(where)
    rows = rows.sort("seq").select("seq", "origin", "origin_seq")

    def page(behind: int, most: int | None) -> list[DeadLetterRow]:
        found = rows.where(f"seq > {behind}")
        if most is not None:
            found = found.limit(most)
        return [DeadLetterRow(row.seq, row.origin, row.origin_seq) for row in found.collect()]

    return first_waiting(page, mover.waiting, limit)


def first_waiting(
    page: Callable[[int, int | None], Sequence[DeadLetterRow]],
    waiting: Callable[[Sequence[DeadLetterRow]], Sequence[DeadLetterRow]],
    limit: int | None,
) -> list[DeadLetterRow]:
    """Return the first waiting letters, at most `limit`, from pages of letters above a seq."""
    found: list[DeadLetterRow] = []
    behind, most = 0, limit
    while limit is None or len(found) < limit:
        letters = page(behind, most)
        found += waiting(letters)
        if most is None or len(letters) < most:
            break
        behind, most = letters[-1].seq, _PAGE
    return found[:limit]


def read(run: JobRun, topic: str, **bounds: str) -> "DataFrame":
    """Return the records of a topic as a DataFrame; losses are skipped."""
    reader = run.spark.read.format("driftq").option("server", run.server).option("topic", topic)
    return reader.options(onDataLoss="skip", **bounds).load()


def age_s() -> "Column":
    """Return the age of a record in seconds, as a column."""
    from pyspark.sql import functions as f

    return (f.unix_millis(f.current_timestamp()) - f.unix_millis("ts")) / 1000


def groups(letters: Sequence[DeadLetterRow], size: int) -> Iterable[Sequence[DeadLetterRow]]:
    """Split letters into groups of up to `size`."""
    return (letters[at : at + size] for at in range(0, len(letters), size))
