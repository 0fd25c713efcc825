"""How far streaming queries are, from what Spark tells of their batches.

Invariant: a batch is counted once, however often Spark is asked.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from driftq.pipeline.runs.job import Progress

_SMOOTH = 0.5


class BatchReport(Protocol):
    """What Spark tells of one batch."""

    @property
    def json(self) -> str:
        """All of it."""
        ...


class QueryProgress(Protocol):
    """What is asked of a query."""

    @property
    def recentProgress(self) -> Iterable[Any]:  # noqa: N802 - Spark calls it so
        """Its last hundred batches."""
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
        """Rows and rows a second; over Spark Connect only the sources tell them."""
        if self.rows is not None:
            return self.rows, self.rate or 0.0
        return sum(source.rows or 0 for source in self.sources), sum(source.rate or 0.0 for source in self.sources)


class Tally:
    """The batches of one query."""

    def __init__(self) -> None:
        self._last = -1
        self.rows = 0
        self.batches = 0
        self.rate = 0.0
        self.lag: int | None = None

    def take(self, query: QueryProgress) -> None:
        """Count what is new."""
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
    """Records between two offsets of the source; None where one is not known or is none of ours."""
    one, other = _places(end), _places(latest)
    if one is None or other is None:
        return None
    return sum(
        max(0, seq - (one[topic][1] if one.get(topic, (0, 0))[0] == epoch else 0))
        for topic, (epoch, seq) in other.items()
    )


def _places(offset: Any) -> dict[str, tuple[int, int]] | None:
    """`{topic: {"epoch": e, "seq": n}}`, which Spark hands on as text or as it is."""
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
    """All queries of a run as one progress; a run that ends knows how many rows there will be."""
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
