"""SIGTERM and SIGINT as a wish to stop."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

_NUMBERS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Signals that stop a worker, once: the next one does what it did before. Only the main thread has any."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
        self._loop = loop
        self._stop = stop
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in _NUMBERS:
            with suppress(ValueError, RuntimeError, NotImplementedError):
                before = signal.getsignal(number)
                self._loop.add_signal_handler(number, self._heard)
                self._before[number] = before
        return self

    def _heard(self) -> None:
        self.__exit__()
        self._stop()

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            # The loop gives a signal back to the system, not to whoever had it.
            self._loop.remove_signal_handler(number)
            if before is not None:
                signal.signal(number, before)
        self._before.clear()
