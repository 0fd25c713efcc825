"""Where each query stands, told to the server as a named cursor: `spark:<name or id of the query>`.

So its lag is seen where every other reader's is: in the list of cursors, in the metrics, in the console. Told after
each batch that Spark has committed. A server that does not answer costs the visible lag and nothing else.

Spark tells its listeners some time after a batch, from a thread of its own. A program that ends right behind its last
batch would take the way to them with it, or, over Connect, wait for ever for a thread that nobody ends: so the end of
the program waits until the listeners have heard what Spark still has to tell.
"""

import json
import os
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ODD = re.compile(r"[^A-Za-z0-9._:>-]")
_NAME_MAX = 255
_LAST_WORDS_S = 10


def cursor_name(query_name: str | None, query_id: str) -> str:
    """The cursor of a query, within the grammar of names."""
    return _ODD.sub("-", f"spark:{query_name or query_id}")[:_NAME_MAX]


def places_in(text: object) -> Places:
    """The places in an offset of a progress report, if it is one of ours."""
    try:
        offset = json.loads(text) if isinstance(text, str) else text
        return decode(offset) if isinstance(offset, Mapping) else {}
    except (ValueError, PipelineError):
        return {}


def listen(spark: "SparkSession", wire: Wire) -> None:
    """Tell a server where the queries of a session stand, until the program ends."""
    spark.streams.addListener(CursorListener(wire))
    # An `atexit` function would come too late over Connect: Python waits for all threads before, and pools of threads
    # take no work any more. What is registered here runs before both, and there is no public way to it.
    threading._register_atexit(_hear_the_last, spark, os.getpid())  # type: ignore[attr-defined]


def _hear_the_last(spark: Any, listening: int) -> None:
    """At the end of the main thread; not in a process that was forked from the one that listens."""
    if os.getpid() != listening:
        return
    if not hasattr(spark, "_jsparkSession"):
        _end_of_the_bus(spark)
    elif (context := spark.sparkContext._jsc) is not None:  # else the session was stopped, which waited for listeners
        with suppress(Py4JError, OSError):  # a JVM that is gone, or still has something to tell after all this time
            context.sc().listenerBus().waitUntilEmpty(_LAST_WORDS_S * 1000)


def _end_of_the_bus(spark: Any) -> None:
    """Over Connect: have the server send the events that are left and no more. `removeListener` asks for the same, but
    keeps the lock meanwhile that delivering those events takes."""
    from pyspark.sql.connect import proto

    hears: threading.Thread | None = spark.streams._sqlb._execution_thread
    if hears is None or spark.client.is_closed:
        return
    command = proto.Command()
    command.streaming_query_listener_bus_command.remove_listener_bus_listener = True
    with suppress(PySparkException):  # a server of Spark's that is gone
        spark.client.execute_command(command)
        hears.join(_LAST_WORDS_S)


class CursorListener(StreamingQueryListener):
    """Moves the cursors of a session's queries."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._others: dict[str, Wire] = {}

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """After a batch."""
        progress = event.progress
        for source in progress.sources:
            self.tell(cursor_name(progress.name, str(progress.id)), source.endOffset, progress.batchId)

    def tell(self, cursor: str, offset: object, batch: int) -> None:
        """Move a cursor to an offset; in a topic that has been made again since, there is nothing to move.

        It goes back, too: a query of the same name with a new checkpoint begins anew.
        """
        for topic, place in places_in(offset).items():
            place_now = {"seq": place.seq, "epoch": place.epoch, "rewind": True}
            value: dict[str, Any] = {**place_now, "meta": {"batch": str(batch)}}
            try:
                wire = self._at(place.server)
                wire.put(wire.topic_path(topic, "cursors", cursor), value, patient=False)
            except PipelineError:
                continue

    def _at(self, server: str) -> Wire:
        if not server:
            return self._wire
        if server not in self._others:
            self._others[server] = self._wire.elsewhere(server)
        return self._others[server]

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """It stands where it stood."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Its cursor stays, and shows how far behind it falls."""
