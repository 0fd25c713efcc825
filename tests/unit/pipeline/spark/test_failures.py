"""What Spark raises, as one line of an error of ours."""

import traceback

import pytest

from driftq.pipeline.errors import (
    AbsentError,
    DataLossError,
    DeniedError,
    PipelineError,
    UnreachableError,
)
from driftq.pipeline.jobs.stream_options import in_short
from driftq.pipeline.spark.failures import failure_of, in_one_line, told_by_spark

PYTHON = """[STREAM_FAILED] Query [id = 1] terminated with exception: it failed: Traceback (most recent call last):
  File "/venv/driftq/pipeline/source.py", line 2, in read
    raise {kind}("no")
{kind}: {told}
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 1, runId = 2]
"""
ABORTED = """An error occurred while calling o89.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 2 times, most recent \
failure: Lost task 0.1 in stage 0.0 (TID 1) (localhost executor driver): org.apache.spark.SparkException: {told}
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator$$anonfun$1.applyOrElse(PythonRunner.scala:1136)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:386)
\t... 21 more

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.$anonfun$abortStage$3(DAGScheduler.scala:4568)
"""
IN_A_BATCH = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Traceback (most recent call last):
    raise Py4JJavaError(
py4j.protocol.Py4JJavaError: """


def test_the_last_line_of_a_python_process_says_why() -> None:
    told = PYTHON.format(kind="driftq.pipeline.errors.DataLossError", told="topic 'a' lost seq 3-9")
    assert told_by_spark(told) == "topic 'a' lost seq 3-9"


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("driftq.pipeline.errors.AbsentError", AbsentError),
        ("driftq.pipeline.errors.DataLossError", DataLossError),
        ("driftq.pipeline.errors.DeniedError", DeniedError),
        ("driftq.pipeline.errors.UnreachableError", UnreachableError),
        ("driftq.client.errors.TransportError", UnreachableError),
        ("driftq.client.errors.UnauthorizedError", DeniedError),
        ("driftq.pipeline.server_connection.AnswerError", PipelineError),
        ("ValueError", PipelineError),
    ],
)
def test_an_error_that_comes_back_as_text_is_of_its_class_again(kind: str, wanted: type[PipelineError]) -> None:
    found = failure_of(PYTHON.format(kind=kind, told="why"))
    assert type(found) is wanted
    assert found.message == "why"


@pytest.mark.parametrize("before", ["", IN_A_BATCH])
def test_what_java_raised_is_told_without_what_is_around_it(before: str) -> None:
    assert told_by_spark(before + ABORTED.format(told="no space left")) == "no space left"


@pytest.mark.parametrize("before", ["", IN_A_BATCH])
def test_a_python_process_that_was_killed_is_told_with_what_to_do(before: str) -> None:
    told = told_by_spark(before + ABORTED.format(told="Python worker exited unexpectedly (crashed). Consider setting"))
    assert "memory ran out" in told
    assert "--max-records" in told


def test_a_first_line_is_told_where_nothing_else_says_why() -> None:
    assert told_by_spark("[TABLE_NOT_FOUND] no such table\nmore") == "[TABLE_NOT_FOUND] no such table"
    wrapped = "[STREAM_FAILED] Query [id = 1] terminated with exception: [ODD] it is odd"
    assert told_by_spark(wrapped) == "[ODD] it is odd"
    assert told_by_spark("An error occurred while calling o1.x.\n: java.lang.InterruptedException\n\tat a.b(c)") == (
        "java.lang.InterruptedException"
    )
    assert told_by_spark("") == "Spark failed without a reason"


class _JavaError(Exception):
    """Looks like one of the bridge to Java."""


_JavaError.__module__ = "py4j.protocol"


def test_errors_of_others_stay_what_they_are() -> None:
    mine = ValueError("mine")
    assert in_one_line(mine) is mine
    assert str(in_one_line(_JavaError(ABORTED.format(told="no space left")))) == "no space left"


def test_a_batch_that_fails_raises_no_pages() -> None:
    def fail(rows: object, batch: int) -> None:
        raise _JavaError(ABORTED.format(told="no space left"))

    with pytest.raises(PipelineError, match="no space left") as told:
        in_short(fail)(None, 0)  # type: ignore[arg-type]
    pages = "".join(traceback.format_exception(told.value))
    assert "DAGScheduler" not in pages
    assert "An error occurred while calling" not in pages


IN_A_UDF = """Job aborted due to stage failure: Task 0 failed: Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pyspark/worker.py", line 900, in main
    process()
  File "/home/me/clean.py", line 12, in total
    return 1 / row.count
  File "/usr/lib/python3.11/fractions.py", line 3, in divide
{error}
"""


def test_an_error_in_a_users_function_is_told_with_file_and_line() -> None:
    assert told_by_spark(IN_A_UDF.format(error="ZeroDivisionError: division by zero")) == (
        "division by zero (/home/me/clean.py, line 12)"
    )
    ours = IN_A_UDF.replace("/home/me/", "/venv/lib/python3.11/site-packages/driftq/")
    assert told_by_spark(ours.format(error="driftq.pipeline.errors.AbsentError: no topic")) == "no topic"
