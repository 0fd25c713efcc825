"""Log lines that may repeat often: a few at once, then one per minute with a count.

Each reason has a window of one minute, which its first event opens. Up to `most` events of a window are logged when
they happen. The others are held back; when the window ends, one line has their count and the facts of the last of them,
and the next window begins with that line. A window without events held back closes the reason.
"""

import logging

from msgspec import Struct

from driftq.system.log_facts import Fact, facts
from driftq.system.runtime import Runtime, Timer

WINDOW_MS = 60_000
REASONS_MAX = 256
"""Reasons above this number share one window, so that a peer cannot fill the memory."""
_OTHER = "other"


class _Window(Struct):
    level: int
    message: str
    named: dict[str, Fact]
    logged: int = 0
    held: int = 0
    timer: Timer | None = None


class Repeats:
    """The windows of one logger. Used on the loop only."""

    def __init__(self, runtime: Runtime, log: logging.Logger) -> None:
        self._runtime = runtime
        self._log = log
        self._windows: dict[str, _Window] = {}

    def note(self, reason: str, level: int, message: str, named: dict[str, Fact], *, most: int = 1) -> None:
        """Log an event, or count it for the line at the end of its window."""
        window = self._windows.get(reason)
        if window is None:
            reason = reason if len(self._windows) < REASONS_MAX else _OTHER
            window = self._windows.get(reason) or self._open(reason, level, message)
        window.level, window.message, window.named = level, message, named
        if window.logged < most:
            window.logged += 1
            self._write(window, 1)
        else:
            window.held += 1

    def flush(self) -> None:
        """Log what is held back, and close every window: the server is ending."""
        for window in self._windows.values():
            if window.timer is not None:
                window.timer.cancel()
            if window.held:
                self._write(window, window.held)
        self._windows.clear()

    def _open(self, reason: str, level: int, message: str) -> _Window:
        window = self._windows[reason] = _Window(level, message, {})
        window.timer = self._runtime.later(WINDOW_MS, lambda: self._end(reason, window))
        return window

    def _end(self, reason: str, window: _Window) -> None:
        if not window.held:
            del self._windows[reason]
            return
        self._write(window, window.held)
        window.logged, window.held = 1, 0
        window.timer = self._runtime.later(WINDOW_MS, lambda: self._end(reason, window))

    def _write(self, window: _Window, count: int) -> None:
        self._log.log(window.level, "%s", window.message, extra=facts(count=count, **window.named))
