"""Coroutines of others, as one seam: they run on a thread with an event loop of their own.

Code we did not write may block, or never end. On a thread of its own it holds up nobody but others of its kind, and the
loop that owns the state hears of it only when it has an answer.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from driftq.seam.runtime import Runtime

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
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, make: Callable[[], Coroutine[Any, Any, object]], ended: Ended) -> Callable[[], None]:
        """Run one on the thread."""

        async def whole() -> None:
            try:
                value = await make()
            except Exception as error:  # noqa: BLE001  # whatever others raise is their answer
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
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self) -> None:
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()
