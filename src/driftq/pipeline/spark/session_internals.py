"""What a session needs that PySpark has no public function for; plain sessions use the nearest public one.

The exception is `pickle_by_value`, a public function of cloudpickle, which PySpark contains: it has no replacement, so
plain sessions use it too. It is called only for code that executors do not have.
"""

import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any

from driftq.pipeline.spark import socket_directory as sockets
from driftq.pipeline.spark.jvm import has_driftq
from driftq.pipeline.spark.plain_spark import is_plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener

WaitForEnds = Callable[[Collection[str], float], object]
_LAST_EVENTS_S = 10
CHECKPOINTS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
"""Conf that lets Spark write a checkpoint file again after it was removed by hand.

Spark's default refuses to, as long as the checksum file (`.n.crc`) of the removed one is there.
"""


def is_connect(spark: Any) -> bool:
    """Whether the session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def pickle_by_value(module: ModuleType) -> None:
    """Make PySpark's pickler include the code of a module, because executors may not have it."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(module)


def use_in_this_thread(spark: "SparkSession") -> None:
    """Make this session the active one of the current thread: a write looks for its format only there."""
    if is_plain():
        spark.createDataFrame([], "id int")  # makes the session active first
        return
    kind: Any = type(spark)
    kind._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


def use_in_every_thread() -> None:
    """Make writes of threads that have no active session use the session of their DataFrame."""
    from pyspark.sql import DataFrameWriter
    from pyspark.sql.streaming import DataStreamWriter  # type: ignore[attr-defined]  # public, and not in its stub

    for kind in (DataFrameWriter, DataStreamWriter):
        if not hasattr(kind.__init__, "__wrapped__"):
            setattr(kind, "__init__", _with_active_session(kind.__init__))  # noqa: B010  # mypy refuses an assignment


def _with_active_session(made: Callable[..., None]) -> Callable[..., None]:
    """Return the constructor of a writer, which first gives the thread an active session if it has none."""

    @wraps(made)
    def make(writer: object, rows: Any) -> None:
        from pyspark.sql import SparkSession

        if SparkSession.getActiveSession() is None:
            use_in_this_thread(rows.sparkSession)
        made(writer, rows)

    return make


def hide_repeated_failures() -> None:
    """Turn off PySpark's loggers that print a failed query as JSON with a Java stack trace; it is also raised."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def python_processes() -> dict[str, str]:
    """Return the conf for how Spark starts Python processes on this machine and which sockets it uses.

    Only for a JVM that this process starts. A JVM keeps the directory of its first session, and may outlive the process
    that started that session.
    """
    settings = {"spark.python.daemon.module": "driftq.pipeline.spark.worker_daemon"} if has_driftq() else {}
    socket_directory = sockets.socket_directory()
    if socket_directory is not None:
        settings |= {
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.python.unix.domain.socket.dir": str(socket_directory.place),
        }
    return settings


def _gone() -> tuple[type[Exception], ...]:
    """Return what PySpark raises if the session was stopped, or if its JVM or Spark server is gone."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (Py4JError, PySparkException, OSError)


def end_active_session() -> None:
    """Stop the active Spark session, if there is one. Does nothing if its JVM is gone."""
    from pyspark.sql import SparkSession

    with suppress(*_gone()):
        session = SparkSession.getActiveSession()
        if session is not None:
            session.stop()


def wait_for_events(spark: Any, listener: "StreamingQueryListener", wait_for_ends: WaitForEnds) -> None:
    """Wait up to 10 s until Spark has passed the remaining events to its listeners.

    Plain sessions call `wait_for_ends(running, timeout_s)`, which waits until the listener has received the end of each
    query that is not running any more. The last batch of a query that is still running may not be reported then.
    """
    if is_plain():
        with suppress(*_gone()):
            wait_for_ends({str(query.runId) for query in spark.streams.active}, _LAST_EVENTS_S)
            if is_connect(spark):  # Python would wait forever for the thread that receives the events
                spark.streams.removeListener(listener)
    elif is_connect(spark):
        _end_connect_events(spark)
    else:
        _empty_listener_bus(spark)


def _empty_listener_bus(spark: Any) -> None:
    context = spark.sparkContext._jsc
    if context is not None:  # else the session was stopped, which waits for listeners
        with suppress(*_gone()):  # or the bus still has events after 10 s
            context.sc().listenerBus().waitUntilEmpty(_LAST_EVENTS_S * 1000)


def _end_connect_events(spark: Any) -> None:
    """With Connect, make the Spark server send the remaining events and then end the stream of events.

    `removeListener` requests the same, but meanwhile holds the lock that the delivery of these events needs.
    """
    from pyspark.sql.connect import proto

    receiver: threading.Thread | None = spark.streams._sqlb._execution_thread
    if receiver is None or spark.client.is_closed:
        return
    command = proto.Command()
    command.streaming_query_listener_bus_command.remove_listener_bus_listener = True
    with suppress(*_gone()):
        spark.client.execute_command(command)
        receiver.join(_LAST_EVENTS_S)
