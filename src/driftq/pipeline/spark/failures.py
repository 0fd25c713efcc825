"""Failures of Spark, which are pages long, as one line that says why.

What Python raised in one of Spark's processes comes back as text: its last line has the class and the message. Where
the class is one of ours, the error is of that class again, so that who started the run can tell an outage from a
mistake. Where no Python is to blame, Java's own line is told, without what Spark has put around it.
"""

import re

from driftq.errors import DriftQError
from driftq.pipeline.errors import AbsentError, DataLossError, DeniedError, PipelineError, UnreachableError

_CLASSES: dict[str, type[PipelineError]] = {
    "AbsentError": AbsentError,
    "DataLossError": DataLossError,
    "DeniedError": DeniedError,
    "UnreachableError": UnreachableError,
    # of the client, in a batch that asks the server itself
    "TransportError": UnreachableError,
    "UnavailableError": UnreachableError,
    "UnauthorizedError": DeniedError,
    "ForbiddenError": DeniedError,
}
_BRIDGE = "Py4JJavaError"
"""Raised in Python for whatever Java raised: it never says why."""
_AROUND = re.compile(
    r"\[STREAM_FAILED\] .*? terminated with exception: "
    r"|Job aborted due to stage failure: .*?most recent failure: .*?\(TID \d+\) \([^)]*\): "
    r"|: (?=[\w.$]+(?:Exception|Error)\b)"
    r"|[\w.$]+\.[\w$]+(?:Exception|Error): "
)
"""What stands before the reason, in Java's lines."""
_KILLED = "Python worker exited unexpectedly"
_KILLED_TOLD = (
    "a Python process of Spark's was killed, most often because memory ran out: "
    "start it again with a smaller --max-records, or with more memory"
)


def in_one_line(error: BaseException) -> BaseException:
    """The same for who has to read it: an error of Spark's becomes one of ours, others stay what they are."""
    if isinstance(error, DriftQError) or not type(error).__module__.startswith(("pyspark", "py4j")):
        return error
    return failure_of(str(error))


def failure_of(text: str) -> PipelineError:
    """The error that a text of Spark's tells of."""
    told = _python_line(_lines(text))
    kind = _CLASSES.get(told.partition(":")[0].rpartition(".")[2], PipelineError) if told else PipelineError
    return kind(told_by_spark(text))


def told_by_spark(text: str) -> str:
    """The line that says what is wrong: the last one of a Python process, else that of Java."""
    if _KILLED in text:
        return _KILLED_TOLD
    lines = _lines(text)
    python = _python_line(lines)
    if python is None:
        return _without_wrapping(_java_line(lines))
    head, colon, rest = python.partition(": ")
    return rest if colon and head.replace(".", "").isidentifier() and rest else python


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _python_line(lines: list[str]) -> str | None:
    """`package.SomeError: message`, the last one."""
    heads = [(line.partition(":")[0].rpartition(".")[2], line) for line in lines if not line.startswith("at ")]
    found = [line for head, line in heads if head.endswith(("Error", "Exception")) and head != _BRIDGE]
    return found[-1] if found else None


def _java_line(lines: list[str]) -> str:
    """What Java raised stands behind a colon where Python has asked for it, and else comes first."""
    raised = [line for line in lines if line.startswith(": ")]
    if raised:
        return raised[0]
    return lines[0] if lines else "Spark failed and did not say why"


def _without_wrapping(line: str) -> str:
    while (around := _AROUND.match(line)) is not None and around.end() < len(line):
        line = line[around.end() :]
    return line
