"""A thread with its own event loop, for coroutines of foreign code.

Code that is not ours may block or never end. On its own thread it delays only other code of its kind, and the loop that
owns the state is called only when there is a result. Every exception is a result, even one that would end a thread of
ours: the thread ends when it is closed, and not before.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from driftq.system.runtime import Runtime

_log = logging.getLogger(__name__)

Ended = Callable[[object, BaseException | None], None]
"""Called with the value that a coroutine returned, or with the exception that it raised."""


class Coroutines(Protocol):
    """Runs coroutines and reports their results."""

    def start(self, make: Callable[[], Coroutine[Any, Any, object]], ended: Ended) -> Callable[[], None]:
        """Make and run a coroutine; `ended` is called on the loop.

        Returns a function that cancels it. After that, `ended` may never be called.
        """
        ...

    def close(self) -> None:
        """Cancel all coroutines, and end."""
        ...


class LoopThread:
    """A thread with an event loop of its own."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        self._runtime = runtime
        self._loop = asyncio.new_event_loop()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, make: Callable[[], Coroutine[Any, Any, object]], ended: Ended) -> Callable[[], None]:
        """Run a coroutine on the thread."""

        async def whole() -> None:
            try:
                value = await make()
            except BaseException as error:  # every exception of foreign code is a result
                if _is_cancelled():
                    raise
                failure = error
                self._runtime.from_thread(lambda: ended(None, failure))
            else:
                self._runtime.from_thread(lambda: ended(value, None))

        task = asyncio.run_coroutine_threadsafe(whole(), self._loop)

        def cancel() -> None:
            task.cancel()

        return cancel

    def close(self) -> None:
        """End the thread, unless a coroutine blocks it: then it ends with the process."""
        self._closed = True
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self) -> None:
        self._go_on(self._loop.run_forever)
        while not self._closed:
            self._go_on(self._loop.run_forever)
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            gathered = asyncio.gather(*tasks, return_exceptions=True)
            self._go_on(lambda: self._loop.run_until_complete(gathered))
        self._loop.close()

    @staticmethod
    def _go_on(step: Callable[[], object]) -> None:
        """Run the loop and survive what it raises: SystemExit of any task ends a loop."""
        try:
            step()
        except BaseException:  # noqa: BLE001  # the exception is foreign, and this thread must continue
            _log.exception("a coroutine has stopped the event loop of its thread; the loop is started again")


def _is_cancelled() -> bool:
    """Whether `cancel` was called for the running task. False if the task raises CancelledError by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
