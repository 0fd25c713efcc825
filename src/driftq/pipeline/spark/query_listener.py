"""Queries that somebody else's code starts: heard of from Spark, for one that has ended is in no list of Spark's.

Spark tells of a start before `start()` returns, and of an end some time behind it.
"""

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PATIENCE_S = 10.0


class Started(StreamingQueryListener):
    """Who was started, and how those that ended did. A query that was started again is the newer one."""

    def __init__(self) -> None:
        self._heard = threading.Condition()
        self._runs: dict[str, str] = {}
        """By the id of a query."""
        self._ends: dict[str, str | None] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """A query has a run."""
        with self._heard:
            self._runs[str(event.id)] = str(event.runId)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """A run is over."""
        with self._heard:
            self._ends[str(event.runId)] = event.exception
            self._heard.notify_all()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Nothing."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing."""

    def failure(self, known: Collection[str]) -> str | None:
        """What Spark says of a query that failed and is none of these ids."""
        with self._heard:
            over = [run for query, run in self._runs.items() if query not in known]
            self._heard.wait_for(lambda: all(run in self._ends for run in over), _PATIENCE_S)
            return next((told for run in over if (told := self._ends.get(run))), None)


@contextmanager
def listening(spark: "SparkSession") -> Iterator[Started]:
    """Hear of the queries that are started meanwhile."""
    started = Started()
    spark.streams.addListener(started)
    try:
        yield started
    finally:
        spark.streams.removeListener(started)
