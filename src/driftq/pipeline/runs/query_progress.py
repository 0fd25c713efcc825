"""Computes the progress of streaming queries from Spark's reports about their batches.

Invariant: a batch is counted once, even if Spark reports it several times.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.offsets import Places, decode
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
        self.lags: dict[str, int] | None = None
        """Rows that wait to be read, by topic; None as long as they are unknown."""

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
        lags = [found for source in batch.sources if (found := lags_of(source.end, source.latest)) is not None]
        if lags:
            self.lags = _added(lags)


def _added(lags: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sum of the lags of each topic."""
    found: Counter[str] = Counter()
    for each in lags:
        found.update(each)
    return dict(found)


def lags_of(end: Any, latest: Any) -> dict[str, int] | None:
    """Return the number of seqs of each topic between two offsets. None if one is not an offset of our source."""
    one, other = _places(end), _places(latest)
    if one is None or other is None:
        return None
    read = {(topic, place.epoch): place.seq for topic, place in one.items()}
    return {topic: max(0, place.seq - read.get((topic, place.epoch), 0)) for topic, place in other.items()}


def _places(offset: Any) -> Places | None:
    """Return the places in an offset of a progress report. None if it is not an offset of our source."""
    try:
        value = msgspec.json.decode(offset) if isinstance(offset, str) else offset
        return decode(value) if isinstance(value, Mapping) else None
    except (msgspec.DecodeError, PipelineError):
        return None


def sum_up(tallies: Iterable[Tally], *, ends: bool) -> Progress:
    """Add up the queries of a run. The total is known only for a run that ends by itself."""
    known = list(tallies)
    rows = sum(tally.rows for tally in known)
    lags = [tally.lags for tally in known if tally.lags is not None]
    waiting = _added(lags)
    lag = sum(waiting.values()) if lags else None
    return Progress(
        rows=rows,
        rows_per_s=round(sum(tally.rate for tally in known), 1),
        batches=sum(tally.batches for tally in known),
        lag=lag,
        topic_lags={topic: count for topic, count in sorted(waiting.items()) if count},
        total=rows + lag if ends and lag is not None else None,
    )
