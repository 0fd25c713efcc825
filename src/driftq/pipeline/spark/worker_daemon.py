"""Spark's daemon of Python workers, which forks one for each task at a time; started by Spark as a program.

Spark hangs up on a worker whose rows nobody wants any more: behind a `show`, or where another task of the query has
failed; and on all of them when it ends. A worker of Spark's own prints a traceback then, and a user reads of a broken
pipe though nothing is wrong. Here it ends without a word; Spark has forgotten it already.

For planning Spark starts daemons of its own, whatever it is told, and for each stream a process that asks its source.
They load our source, and from then on they end in silence too.
"""

import sys
import traceback
from types import TracebackType
from typing import Any

from pyspark import daemon

STREAM_PROCESS = "pyspark.sql.streaming.python_streaming_source_runner"
HUNG_UP = (BrokenPipeError, ConnectionResetError, EOFError)


class _Traceback:
    """What a daemon prints by: an error of a connection that was hung up on is not worth it."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        """Of the error that is handled."""
        if not isinstance(sys.exception(), HUNG_UP):
            traceback.print_exc()


def hush(forks: Any) -> None:
    """Have the workers of a daemon, a module of Spark's, end without a word where Spark hangs up.

    What a task raises is told to Spark and ends in a code, so that an error which a daemon would print is one of the
    connection, or of the daemon itself.
    """
    forks.traceback = _Traceback


def hush_this_process() -> None:
    """If this is a worker of a daemon of Spark's own, or the process of a stream's source, it is hushed."""
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
