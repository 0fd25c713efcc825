"""Runs handlers: coroutine functions in tasks of the loop, plain functions in threads.

A runner takes a held item and calls `decided` once, on the loop: with the value that the handler returned or raised, or
with `UNSTARTED` if the worker stopped before the handler began.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from inspect import isawaitable
from typing import Any, Generic, Protocol

from driftq.client.transport.thread_pool import ThreadPool
from driftq.client.workers.handlers import Item, check_outcome, run_plain
from driftq.client.workers.held_work import Decision, HeldItem, Retry

_log = logging.getLogger(__name__)

UNSTARTED = object()
"""Passed to `decided` for an item whose handler was not started."""

Decided = Callable[[Any, object], None]
"""Called on the loop with a held item and the value that its handler returned or raised."""


class Runner(Protocol):
    """Runs the handler of each item."""

    rounds: int
    """How many items per slot the runner takes: with 2, it queues the next item of each slot itself."""

    def start(self, held: Any, decided: Decided) -> None:
        """Run the handler for an item; call `decided` with its result."""
        ...

    def withdraw(self) -> None:
        """Call `decided` with `UNSTARTED` for every item that waits for a thread."""
        ...

    async def close(self) -> bool:
        """Cancel the handlers that run, if that is possible. Return whether all handlers have ended."""
        ...


class LoopRunner(Generic[Item]):
    """Runs a coroutine function, each call in its own task."""

    rounds = 1

    def __init__(self, handle: Callable[[Item], Awaitable[object]]) -> None:
        self._handle = handle
        self._warned = False
        self._closed = False
        self._tasks: dict[asyncio.Task[None], tuple[HeldItem[Item], Decided]] = {}

    def start(self, held: HeldItem[Item], decided: Decided) -> None:
        """Start a task that runs the handler."""
        task = asyncio.get_running_loop().create_task(self._run(held, decided))
        self._tasks[task] = held, decided
        task.add_done_callback(self._ended)
        if self._closed:
            task.cancel()

    async def _run(self, held: HeldItem[Item], decided: Decided) -> None:
        decided(held, await self._run_handler(held.item))

    def _ended(self, task: asyncio.Task[None]) -> None:
        held, decided = self._tasks.pop(task)
        if task.cancelled():
            decided(held, Retry(after=0 if self._closed else None, reason="the handler was cancelled"))

    async def _run_handler(self, item: Item) -> object:
        try:
            returned: object = self._handle(item)
            if isawaitable(returned):
                returned = await returned
            elif not self._warned:
                self._warned = True
                _log.warning(
                    "the handler of an AsyncWorker is a plain function and blocks the event loop; use Worker for it"
                )
            return check_outcome(self._handle, returned)
        except Exception as error:  # noqa: BLE001  # any exception means a nack, so the message is not lost
            return _raised(error)

    def withdraw(self) -> None:
        """Do nothing: every handler was started at once."""

    async def close(self) -> bool:
        """Cancel the tasks and wait until they have ended. Their items are to be delivered again at once."""
        self._closed = True
        await cancel_all(self._tasks)
        return True


class ThreadRunner(Generic[Item]):
    """Runs a plain function in threads, which take the next item without waiting for the loop."""

    rounds = 2

    def __init__(self, handle: Callable[[Item], object], concurrency: int, is_wanted: Callable[[Any], bool]) -> None:
        self._handle = handle
        self._is_wanted = is_wanted
        self._thread_pool: ThreadPool[tuple[HeldItem[Item], Decided], object] = ThreadPool(
            concurrency, "driftq-worker", self._run_handler, self._returned
        )

    def start(self, held: HeldItem[Item], decided: Decided) -> None:
        """Queue the item for the next free thread."""
        self._thread_pool.put((held, decided))

    def _run_handler(self, started: tuple[HeldItem[Item], Decided]) -> object:
        """Return the result of the handler, or `UNSTARTED`. Called in a thread."""
        held, _ = started
        if not self._is_wanted(held):
            return UNSTARTED
        try:
            return run_plain(self._handle, held.item)  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001  # any exception means a nack, so the message is not lost
            return _raised(error)

    def _returned(self, started: tuple[HeldItem[Item], Decided], outcome: object) -> None:
        held, decided = started
        decided(held, outcome)

    def withdraw(self) -> None:
        """Call `decided` with `UNSTARTED` for every item that waits for a thread."""
        for held, decided in reversed(self._thread_pool.withdraw()):
            decided(held, UNSTARTED)

    async def close(self) -> bool:
        """Start no more handlers. Return False: those that run in threads cannot be cancelled."""
        self._thread_pool.close()
        return False


async def cancel_all(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel the tasks, and wait until all have ended."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


def _raised(error: Exception) -> Exception:
    """Return the exception of a handler; log it unless it is a `Decision`."""
    if not isinstance(error, Decision):
        _log.error("a handler failed; its item will be delivered again", exc_info=error)
    return error
