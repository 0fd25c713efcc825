"""Spark's Python workers, which serve one task after the other.

Behind each task a worker collects garbage over every object it has, some 40 ms with the modules that are loaded, and
the next task waits for it. What is there when a task ends stays there for the life of the process, so it is taken out
of the collector's sight, once: the collection before the task has left no garbage among it.
"""

import gc

from pyspark import TaskContext


def settle() -> None:
    """At the end of a task: the collector need not look at what is loaded by now. Does nothing elsewhere."""
    # The count is asked for, not a flag of ours: code that travels by value is new in every task.
    if TaskContext.get() is not None and not gc.get_freeze_count():
        gc.freeze()
