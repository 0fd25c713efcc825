"""The log: lines on standard error, for people or for programs."""

import logging

from msgspec import json

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}
_TEXT = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")


class JsonLines(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, origin and message; and the trace of an error, if there is one."""
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.encode(line).decode()


def start_log(level: str, form: str = "text") -> None:
    """Log at a level; one that nobody knows is `info`."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else _TEXT)
    logging.basicConfig(level=_LEVELS.get(level.lower(), logging.INFO), handlers=[handler])
