"""Spark's daemon for Python workers, without needless tracebacks. Spark runs this module as a program.

The daemon forks a worker per concurrent task. Spark closes the connection of a worker whose rows are no longer needed:
after a `show`, if another task of the query has failed, and at its own end. Spark's stock worker prints a traceback
then, and users see a broken pipe although nothing is wrong. Here the worker ends silently; Spark has dropped it
already.

For planning, Spark always starts stock daemons, and for each stream it starts a process for the source. These processes
end silently, too, once they have called our source or sink. Importing this module changes nothing.
"""

import sys
import traceback
from types import TracebackType
from typing import Any

from pyspark import daemon

from driftq.pipeline.spark.plain_spark import is_plain

STREAM_PROCESS = "pyspark.sql.streaming.python_streaming_source_runner"
HUNG_UP = (BrokenPipeError, ConnectionResetError, EOFError)


class _Traceback:
    """Replaces `traceback` in a daemon: errors of a connection that Spark has closed are not printed."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        """Print the current exception, unless Spark has closed the connection."""
        if not isinstance(sys.exception(), HUNG_UP):
            traceback.print_exc()


def hush(forks: Any) -> None:
    """Make the workers of a daemon (a module of Spark) end silently if Spark closes their connection.

    Errors of a task are sent to Spark and end in an exit code. So an error that a daemon would print comes from the
    connection or from the daemon itself.
    """
    forks.traceback = _Traceback


def hush_this_process() -> None:
    """Silence this process if it is a worker of a stock daemon or the process of a stream's source.

    The source and the sink call this when Spark calls them. Plain sessions leave Spark's processes as they are.
    """
    if is_plain():
        return
    program = sys.modules["__main__"]
    name = getattr(getattr(program, "__spec__", None), "name", None)
    if name == daemon.__name__:
        hush(program)
    elif name == STREAM_PROCESS:
        sys.excepthook = _tell_unless_hung_up


def _tell_unless_hung_up(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    if not isinstance(error, HUNG_UP):
        sys.__excepthook__(kind, error, at)


if __name__ == "__main__":
    hush(daemon)
    daemon.manager()
