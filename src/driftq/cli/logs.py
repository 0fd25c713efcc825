"""The log: lines on standard error."""

import logging

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}


def start_log(level: str) -> None:
    """Log at a level; one that nobody knows is `info`."""
    logging.basicConfig(
        level=_LEVELS.get(level.lower(), logging.INFO), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
