"""Computes the progress of streaming queries from Spark's reports about their batches.

Invariant: a batch is counted once, even if Spark reports it several times.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from driftq.pipeline.runs.job import Progress

_SMOOTH = 0.5


class BatchReport(Protocol):
    """Spark's report about one batch."""

    @property
    def json(self) -> str:
        """The complete report as JSON text."""
        ...


class QueryProgress(Protocol):
    """The part of a streaming query that `Tally` uses."""

    @property
    def recentProgress(self) -> Iterable[Any]:  # noqa: N802 - Spark calls it so  # name given by Spark
        """Reports about the last 100 batches."""
        ...


class _Source(msgspec.Struct):
    end: Any = msgspec.field(name="endOffset", default=None)
    latest: Any = msgspec.field(name="latestOffset", default=None)
    rows: int | None = msgspec.field(name="numInputRows", default=None)
    rate: float | None = msgspec.field(name="processedRowsPerSecond", default=None)


class _Batch(msgspec.Struct):
    number: int = msgspec.field(name="batchId")
    rows: int | None = msgspec.field(name="numInputRows", default=None)
    rate: float | None = msgspec.field(name="processedRowsPerSecond", default=None)
    sources: list[_Source] = []

    def read(self) -> tuple[int, float]:
        """Return rows and rows per second. With Spark Connect, only the sources have these numbers."""
        if self.rows is not None:
            return self.rows, self.rate or 0.0
        return sum(source.rows or 0 for source in self.sources), sum(source.rate or 0.0 for source in self.sources)


class Tally:
    """Counts the batches and rows of one query."""

    def __init__(self) -> None:
        self._last = -1
        self.rows = 0
        self.batches = 0
        self.rate = 0.0
        self.lag: int | None = None

    def take(self, query: QueryProgress) -> None:
        """Count the batches that are new since the last call."""
        for told in query.recentProgress:
            batch = msgspec.json.decode(told.json, type=_Batch)
            self._lag_of(batch)
            rows, rate = batch.read()
            if batch.number <= self._last or not rows:
                continue
            self._last = batch.number
            self.rows += rows
            self.batches += 1
            self.rate = rate if self.batches == 1 else self.rate + _SMOOTH * (rate - self.rate)

    def _lag_of(self, batch: _Batch) -> None:
        lags = [lag for source in batch.sources if (lag := lag_of(source.end, source.latest)) is not None]
        if lags:
            self.lag = sum(lags)


def lag_of(end: Any, latest: Any) -> int | None:
    """Return the number of records between two offsets. None if one is unknown or not an offset of our source."""
    one, other = _places(end), _places(latest)
    if one is None or other is None:
        return None
    return sum(
        max(0, seq - (one[topic][1] if one.get(topic, (0, 0))[0] == epoch else 0))
        for topic, (epoch, seq) in other.items()
    )


def _places(offset: Any) -> dict[str, tuple[int, int]] | None:
    """Return epoch and seq by topic of `{topic: {"epoch": e, "seq": n}}`, given as JSON text or as a mapping."""
    try:
        value = msgspec.json.decode(offset) if isinstance(offset, str) else offset
    except msgspec.DecodeError:
        return None
    if not isinstance(value, Mapping):
        return None
    try:
        return {str(topic): (int(place["epoch"]), int(place["seq"])) for topic, place in value.items()}
    except (KeyError, TypeError, ValueError):
        return None


def sum_up(tallies: Iterable[Tally], *, ends: bool) -> Progress:
    """Add up the queries of a run. The total is known only for a run that ends by itself."""
    known = list(tallies)
    rows = sum(tally.rows for tally in known)
    lags = [tally.lag for tally in known if tally.lag is not None]
    lag = sum(lags) if lags else None
    return Progress(
        rows=rows,
        rows_per_s=round(sum(tally.rate for tally in known), 1),
        batches=sum(tally.batches for tally in known),
        lag=lag,
        total=rows + lag if ends and lag is not None else None,
    )
