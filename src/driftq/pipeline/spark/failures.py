"""Turns failures of Spark, which are pages long, into one line with the reason.

An error that Python raised in one of Spark's processes comes back as text; its last line has the class and the message.
If the class is one of ours, the result has that class again, so that the caller can distinguish an outage from a
mistake. If no Python error is found, the result is Java's own line without Spark's wrapping.
"""

import re

from driftq.errors import DriftQError
from driftq.pipeline.errors import AbsentError, DataLossError, DeniedError, PipelineError, UnreachableError

_CLASSES: dict[str, type[PipelineError]] = {
    "AbsentError": AbsentError,
    "DataLossError": DataLossError,
    "DeniedError": DeniedError,
    "UnreachableError": UnreachableError,
    # raised by the client, in a batch that calls the server itself
    "TransportError": UnreachableError,
    "UnavailableError": UnreachableError,
    "UnauthorizedError": DeniedError,
    "ForbiddenError": DeniedError,
}
_BRIDGE = "Py4JJavaError"
"""PySpark raises this in Python for every Java error, so its line never has the reason."""
_AROUND = re.compile(
    r"\[STREAM_FAILED\] .*? terminated with exception: "
    r"|Job aborted due to stage failure: .*?most recent failure: .*?\(TID \d+\) \([^)]*\): "
    r"|: (?=[\w.$]+(?:Exception|Error)\b)"
    r"|[\w.$]+\.[\w$]+(?:Exception|Error): "
)
"""Text before the reason in a line of Java."""
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_NOT_OF_USERS = re.compile(r"(?:^|/)(?:driftq|pyspark|py4j|lib/python[0-9.]+)/|^<frozen|\.zip/")
_KILLED = "Python worker exited unexpectedly"
_KILLED_TOLD = (
    "a Python process of Spark was killed, most often because memory ran out: "
    "start again with a smaller --max-records, or with more memory"
)


def in_one_line(error: BaseException) -> BaseException:
    """Return an error of Spark as a PipelineError with one line; return other errors unchanged."""
    if isinstance(error, DriftQError) or not type(error).__module__.startswith(("pyspark", "py4j")):
        return error
    return failure_of(str(error))


def failure_of(text: str) -> PipelineError:
    """Return the error for a failure text of Spark, with the class of ours that the text names."""
    told = _python_line(_lines(text))
    kind = _CLASSES.get(told.partition(":")[0].rpartition(".")[2], PipelineError) if told else PipelineError
    return kind(told_by_spark(text))


def told_by_spark(text: str) -> str:
    """Return the line of the text with the reason: the last one of a Python process, else the one of Java."""
    if _KILLED in text:
        return _KILLED_TOLD
    lines = _lines(text)
    python = _python_line(lines)
    if python is None:
        return _without_wrapping(_java_line(lines))
    head, colon, rest = python.partition(": ")
    return (rest if colon and head.replace(".", "").isidentifier() and rest else python) + _place(lines, python)


def _place(lines: list[str], error: str) -> str:
    """Return where the user's code raised an error; nothing if only Spark's code and ours are in its traceback."""
    end = len(lines) - lines[::-1].index(error)
    start = max((at for at in range(end) if lines[at].startswith("Traceback")), default=0)
    frames = [found for line in lines[start:end] if (found := _FRAME.match(line)) is not None]
    own = [frame for frame in frames if not _NOT_OF_USERS.search(frame["file"])]
    return f" ({own[-1]['file']}, line {own[-1]['line']})" if own else ""


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _python_line(lines: list[str]) -> str | None:
    """Return the last line of the form `package.SomeError: message`, or None."""
    heads = [(line.partition(":")[0].rpartition(".")[2], line) for line in lines if not line.startswith("at ")]
    found = [line for head, line in heads if head.endswith(("Error", "Exception")) and head != _BRIDGE]
    return found[-1] if found else None


def _java_line(lines: list[str]) -> str:
    """Return the line of the Java error: the one that starts with a colon if Python called Java, else the first."""
    raised = [line for line in lines if line.startswith(": ")]
    if raised:
        return raised[0]
    return lines[0] if lines else "Spark failed without a reason"


def _without_wrapping(line: str) -> str:
    while (around := _AROUND.match(line)) is not None and around.end() < len(line):
        line = line[around.end() :]
    return line
