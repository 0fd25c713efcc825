"""Notices streaming queries that user code starts, and how they end.

A listener is needed because Spark does not list queries that have ended. Spark calls it for a start before `start()`
returns, and for an end some time after it.
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
    """Collects the queries that were started and how each run ended. If a query starts again, its newest run counts."""

    def __init__(self) -> None:
        self._heard = threading.Condition()
        self._runs: dict[str, str] = {}
        """Run id by query id."""
        self._ends: dict[str, str | None] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Record the run of a query."""
        with self._heard:
            self._runs[str(event.id)] = str(event.runId)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Record how a run ended."""
        with self._heard:
            self._ends[str(event.runId)] = event.exception
            self._heard.notify_all()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Ignore progress, which is not needed here."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Ignore idle events, which are not needed here."""

    def failure(self, known: Collection[str]) -> str | None:
        """Return Spark's error text of a failed query whose id is not in `known`, or None if there is none.

        Waits up to 10 s for Spark to report the end of these queries.
        """
        with self._heard:
            over = [run for query, run in self._runs.items() if query not in known]
            self._heard.wait_for(lambda: all(run in self._ends for run in over), _PATIENCE_S)
            return next((told for run in over if (told := self._ends.get(run))), None)


@contextmanager
def listening(spark: "SparkSession") -> Iterator[Started]:
    """Listen for the queries that are started inside the `with` block."""
    started = Started()
    spark.streams.addListener(started)
    try:
        yield started
    finally:
        spark.streams.removeListener(started)
