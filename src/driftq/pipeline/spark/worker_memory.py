"""Saves time between two tasks of a Spark Python worker, which runs one task after another.

After each task a worker runs a garbage collection over all its objects. With the loaded modules this takes about 40 ms,
and the next task waits for it. Objects that exist at the end of a task live as long as the process, so they are
excluded from collection (`gc.freeze`), once per process. The collection before the task has removed garbage from them.
"""

import gc

from pyspark import TaskContext

from driftq.pipeline.spark.plain_spark import is_plain


def settle() -> None:
    """Exclude all current objects from garbage collection. Called at the end of a task; does nothing outside a task."""
    # Asks for the count instead of keeping a flag: code that is pickled by value is loaded anew in every task.
    if TaskContext.get() is not None and not is_plain() and not gc.get_freeze_count():
        gc.freeze()
