"""Stores the position of each query on the server, as a named cursor: `spark:<name or id of the query>`.

So its lag is visible where that of every other reader is: in the list of cursors, in the metrics, in the console. The
position is stored after each batch that Spark has committed. If the server does not answer, the visible lag is not
updated; nothing else happens.

Spark calls its listeners some time after a batch, from a thread of its own. If a program ends right after its last
batch, that call would fail, or, with Connect, the program would wait forever for a thread that never ends. So the end
of the program waits until the listeners have received the remaining events.
"""

import json
import os
import re
import threading
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.offsets import Places, decode
from driftq.pipeline.server_connection import Wire
from driftq.pipeline.spark.session_internals import wait_for_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ODD = re.compile(r"[^A-Za-z0-9._:>-]")
_NAME_MAX = 255


def cursor_name(query_name: str | None, query_id: str) -> str:
    """Return the name of a query's cursor, with characters that names cannot have replaced."""
    return _named(f"spark:{query_name or query_id}")


def _named(text: str) -> str:
    return _ODD.sub("-", text)[:_NAME_MAX]


def places_in(text: object) -> Places:
    """Return the places in an offset of a progress report, or nothing if it is not an offset of our source."""
    try:
        offset = json.loads(text) if isinstance(text, str) else text
        return decode(offset) if isinstance(offset, Mapping) else {}
    except (ValueError, PipelineError):
        return {}


def listen(spark: "SparkSession", wire: Wire) -> None:
    """Store the positions of a session's queries on a server, until the program ends."""
    listener = CursorListener(wire)
    spark.streams.addListener(listener)
    # With Connect, an `atexit` function would run too late: before it, Python waits for all threads, and thread pools
    # accept no more work. This hook runs before both; there is no public function for it.
    threading._register_atexit(_wait_at_exit, spark, listener, os.getpid())  # type: ignore[attr-defined]


def _wait_at_exit(spark: "SparkSession", listener: "CursorListener", listening: int) -> None:
    """Wait for the remaining events at the end of the main thread; return at once in a forked process."""
    if os.getpid() == listening:
        wait_for_events(spark, listener, listener.wait_for_ends)


class CursorListener(StreamingQueryListener):
    """Moves the cursors of a session's queries after each batch."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._others: dict[str, Wire] = {}
        self._ended = threading.Condition()
        self._runs: set[str] = set()
        """Run ids of the queries whose end was not reported yet."""

    def wait_for_ends(self, running: Collection[str], timeout_s: float) -> bool:
        """Wait until the end of each run that is not in `running` was reported. Returns False after the timeout."""
        with self._ended:
            return self._ended.wait_for(lambda: self._runs.issubset(running), timeout_s)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Move the cursors after a batch."""
        progress = event.progress
        for source in progress.sources:
            self.tell(cursor_name(progress.name, str(progress.id)), source.endOffset, progress.batchId)

    def tell(self, cursor: str, offset: object, batch: int) -> None:
        """Move a cursor to an offset. If the topic was created again since, the cursor does not move.

        The offset of a query with a `kafka.group.id` has the name of its cursor.

        The cursor may move back: a query of the same name with a new checkpoint starts again.
        """
        for topic, place in places_in(offset).items():
            place_now = {"seq": place.seq, "epoch": place.epoch, "rewind": True}
            value: dict[str, Any] = {**place_now, "meta": {"batch": str(batch)}}
            try:
                wire = self._at(place.server)
                name = _named(place.cursor) or cursor
                wire.put(wire.topic_path(topic, "cursors", name), value, patient=False)
            except PipelineError:
                continue

    def _at(self, server: str) -> Wire:
        if not server:
            return self._wire
        if server not in self._others:
            self._others[server] = self._wire.elsewhere(server)
        return self._others[server]

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Remember the run. There is no position yet."""
        with self._ended:
            self._runs.add(str(event.runId))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing: the position has not changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Forget the run. The cursor stays and shows the growing lag."""
        with self._ended:
            self._runs.discard(str(event.runId))
            self._ended.notify_all()
