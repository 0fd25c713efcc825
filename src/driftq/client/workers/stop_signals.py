"""Makes SIGTERM and SIGINT stop a worker."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

_NUMBERS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Calls `stop` at the first signal, then restores the handlers, so a second signal acts as before.

    Outside the main thread it does nothing, because only that thread can handle signals.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
        self._loop = loop
        self._stop = stop
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in _NUMBERS:
            with suppress(ValueError, RuntimeError, NotImplementedError):
                before = signal.getsignal(number)
                self._loop.add_signal_handler(number, self._on_signal)
                self._before[number] = before
        return self

    def _on_signal(self) -> None:
        self.__exit__()
        self._stop()

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            # The loop restores the default of the system, not the handler that was set before.
            self._loop.remove_signal_handler(number)
            if before is not None:
                signal.signal(number, before)
        self._before.clear()
