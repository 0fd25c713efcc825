"""The server's log: lines on standard error, for people (`text`) or for programs (`json`).

With `json`, every line that the process writes to standard error is one JSON object, including warnings, uncaught
errors of any thread, and a refused start. All of it is ASCII, so that no locale can break a line. Times are RFC 3339,
UTC, with milliseconds.

A line is at most `LINE_BYTES` long, so that lines of several processes never mix in one pipe. Logging never blocks:
while the pipe is full because it is not read, lines are dropped and counted, and the next line gives the number.

Writer processes are forked after `start_log` and log in the same way.
"""

import logging
import select
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType

from driftq.system.log_facts import FACTS, Fact, facts

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@+%,~[]()*!?&;<>|{}^$#`")
"""Characters that a fact may have in a text line without being quoted."""
LINE_BYTES = 4096
"""A pipe accepts this many bytes in one piece or not at all (PIPE_BUF)."""
_LONG_CHARS = 1000
"""Characters that a cut trace leaves free in its line, because a character may take several bytes."""
_CUT = " ... "
_log = logging.getLogger("driftq")


def rfc3339(seconds: float) -> str:
    """Return a Unix time as `2026-11-18T05:45:59.069Z`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextLines(logging.Formatter):
    """Formats a record as time, level, logger, message and facts (`name=value`); a trace has lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line of text."""
        parts = [f"{rfc3339(record.created)} {record.levelname} {record.name}: {_printable(_message(record))}"]
        parts += [f"{name}={_shown(value)}" for name, value in _facts(record).items()]
        line = " ".join(parts)
        trace = _trace(self, record)
        if trace:
            room = max(0, LINE_BYTES - _LONG_CHARS - len(line))
            line += "\n" + (trace if len(trace) <= room else _CUT.lstrip() + trace[len(trace) - room :])
        return line if _size(line) < LINE_BYTES else _fitting(line)


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object: time, level, logger, message, its facts, and the trace of an error."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        from json import dumps  # escapes everything that is not ASCII, lone surrogates included

        line: dict[str, Fact] = {
            "time": rfc3339(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        for name, value in _facts(record).items():
            line.setdefault(name, value)
        trace = _trace(self, record)
        if trace:
            line["trace"] = trace
        text = dumps(line, default=str, separators=(",", ":"))
        while len(text) >= LINE_BYTES:
            # The end of a trace names the error; of all other values, the beginning matters most.
            longest = max(line, key=lambda name: len(str(line[name])))
            value = str(line[longest])
            half = len(value) // 2
            line[longest] = _CUT + value[-half:] if longest == "trace" else value[:half] + _CUT
            text = dumps(line, default=str, separators=(",", ":"))
        return text


class _StandardError(logging.StreamHandler):  # type: ignore[type-arg]  # generic to mypy only
    """Writes to standard error, unless that would make the process wait."""

    def __init__(self) -> None:
        super().__init__()
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or drop and count it if the pipe is full."""
        if not self._takes():
            self._dropped += 1
            return
        if self._dropped:
            message = "log lines were dropped: standard error was not read"
            lost = logging.LogRecord(_log.name, logging.WARNING, "", 0, message, None, None)
            lost.__dict__.update(facts(count=self._dropped))
            self._dropped = 0
            super().emit(lost)
        super().emit(record)

    def _takes(self) -> bool:
        """Whether a line can be written at once; for a pipe that means `LINE_BYTES` of room."""
        try:
            handle = self.stream.fileno()
        except (OSError, ValueError):
            return True  # not a file of the operating system
        ready = select.poll()
        ready.register(handle, select.POLLOUT)
        return bool(ready.poll(0))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the name is logging's
        """Drop a line that cannot be written: a broken pipe must not stop the server."""


def start_log(level: str, form: str = "text") -> None:
    """Log at a level (`config.LOG_LEVELS`), and route everything else that Python prints into the log."""
    handler = _StandardError()
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logging.basicConfig(level=_LEVELS[level], handlers=[handler])
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread
    sys.unraisablehook = _unraisable


def chosen_format(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the log format that flags or environment name, before either is checked: their errors are logged too."""
    form = environment.get("DRIFTQ_LOG_FORMAT", "")
    for number, argument in enumerate(arguments):
        if argument == "--log-format":
            form = "".join(arguments[number + 1 : number + 2])
        elif argument.startswith("--log-format="):
            form = argument.partition("=")[2]
    return "json" if form == "json" else "text"


def refuse(message: str, form: str, code: int = 1) -> None:
    """Print why the process does not start, or why it ends: one line, `driftq: ...` or a JSON object."""
    if form == "json":
        record = logging.LogRecord(_log.name, logging.ERROR, "", 0, message, None, None)
        record.__dict__.update(facts(exit_code=code))
        sys.stderr.write(JsonLines().format(record) + "\n")
    else:
        sys.stderr.write(f"driftq: {message}\n")


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001  # if the arguments do not fit the message, log its text alone
        return str(record.msg)


def _facts(record: logging.LogRecord) -> Mapping[str, Fact]:
    found: Mapping[str, Fact] = getattr(record, FACTS, {})
    return found


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = [formatter.formatException(record.exc_info)] if record.exc_info else []
    if record.stack_info:
        parts.append(record.stack_info)
    return "\n".join(parts)


def _shown(value: Fact) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if text and _PLAIN.issuperset(text):
        return text
    from json import dumps

    return dumps(text)


def _printable(text: str) -> str:
    """Return the text on one line, so that values sent by a client cannot forge a line of the log."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _size(line: str) -> int:
    return len(line) if line.isascii() else len(line.encode("utf-8", "backslashreplace"))


def _fitting(line: str) -> str:
    """Cut a long line until it fits, even if each character takes four bytes or an escape."""
    while _size(line) >= LINE_BYTES:
        line = line[: len(line) * 3 // 4] + _CUT
    return line


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    _log.critical("the process ends: an error was not caught", exc_info=(kind, error, trace))


def _uncaught_in_thread(found: threading.ExceptHookArgs) -> None:
    name = "?" if found.thread is None else found.thread.name
    error = found.exc_value or found.exc_type()
    _log.critical("thread %s ended: an error was not caught", name, exc_info=error)


def _unraisable(found: "sys.UnraisableHookArgs") -> None:
    _log.error("%s: %r", found.err_msg or "an error was ignored", found.object, exc_info=found.exc_value)
