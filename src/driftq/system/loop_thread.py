"""Coroutines of others, as one seam: they run on a thread with an event loop of their own.

Code we did not write may block, or never end. On a thread of its own it holds up nobody but others of its kind, and the
loop that owns the state hears of it only when it has an answer. Whatever it raises is its answer, also what would end a
thread of ours: the thread ends when it is closed, and not before.
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
"""Told what a coroutine returned, or what it raised."""


class Coroutines(Protocol):
    """Where they run."""

    def start(self, make: Callable[[], Coroutine[Any, Any, object]], ended: Ended) -> Callable[[], None]:
        """Make and run one; `ended` is called on the loop. The answer cancels it, after which nobody may be told."""
        ...

    def close(self) -> None:
        """Cancel all."""
        ...


class LoopThread:
    """A thread with an event loop."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        self._runtime = runtime
        self._loop = asyncio.new_event_loop()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, make: Callable[[], Coroutine[Any, Any, object]], ended: Ended) -> Callable[[], None]:
        """Run one on the thread."""

        async def whole() -> None:
            try:
                value = await make()
            except BaseException as error:  # whatever others raise is their answer
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
        """End the thread, unless something on it blocks: then it ends with the process."""
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
        """Let the loop run, and outlive what it raises: SystemExit of a task ends it, whoever made the task."""
        try:
            step()
        except BaseException:  # noqa: BLE001  # it is theirs, and the thread is ours
            _log.exception("code of others has stopped its event loop, which goes on")


def _is_cancelled() -> bool:
    """Is the running task called off by us? One that raises CancelledError by itself is not."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
