"""How handlers are run: a coroutine function by tasks of the loop, a plain function by threads.

A runner is given what is held, and calls `decided` on the loop, once, with what the handler returned or raised, or with
`UNSTARTED` where the worker stopped first.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, Generic, Protocol

from driftq.client.transport.thread_pool import Crew
from driftq.client.workers.handlers import Item, check_outcome, run_plain
from driftq.client.workers.held_work import Decision, HeldItem

_log = logging.getLogger(__name__)

UNSTARTED = object()
"""What is decided about an item that no handler has seen."""

Decided = Callable[[Any, object], None]
"""Called on the loop with what is held, and with what its handler returned or raised."""


class Runner(Protocol):
    """How handlers are run."""

    rounds: int
    """How many rounds of slots it can be given; with 2, it keeps what is ahead itself."""

    def start(self, held: Any, decided: Decided) -> None:
        """Have one handled."""
        ...

    def withdraw(self) -> None:
        """Decide that what waits for a thread was not started."""
        ...

    async def close(self) -> None:
        """Call off what runs, where that is possible."""
        ...


class LoopRunner(Generic[Item]):
    """Runs a coroutine function, each call in a task of its own."""

    rounds = 1

    def __init__(self, handle: Callable[[Item], Awaitable[object]]) -> None:
        self._handle = handle
        self._warned = False
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, held: HeldItem[Item], decided: Decided) -> None:
        """Begin a task."""
        task = asyncio.get_running_loop().create_task(self._run(held, decided))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, held: HeldItem[Item], decided: Decided) -> None:
        decided(held, await self._said(held.item))

    async def _said(self, item: Item) -> object:
        try:
            returned: object = self._handle(item)
            if isawaitable(returned):
                returned = await returned
            elif not self._warned:
                self._warned = True
                _log.warning("a handler of AsyncWorker is a plain function and blocks the loop; give it to Worker")
            return check_outcome(self._handle, returned)
        except Exception as error:  # noqa: BLE001  # whatever it is, the message is not lost
            return _raised(error)

    def withdraw(self) -> None:
        """Do nothing: every task has begun."""

    async def close(self) -> None:
        """Cancel the tasks."""
        await cancel_all(self._tasks)


class ThreadRunner(Generic[Item]):
    """Runs a plain function in threads, which take what is ahead by themselves."""

    rounds = 2

    def __init__(self, handle: Callable[[Item], object], concurrency: int, is_wanted: Callable[[Any], bool]) -> None:
        self._handle = handle
        self._is_wanted = is_wanted
        self._crew: Crew[tuple[HeldItem[Item], Decided], object] = Crew(
            concurrency, "driftq-worker", self._said, self._returned
        )

    def start(self, held: HeldItem[Item], decided: Decided) -> None:
        """Give it to the next thread that is free."""
        self._crew.put((held, decided))

    def _said(self, started: tuple[HeldItem[Item], Decided]) -> object:
        """Run in a thread."""
        held, _ = started
        if not self._is_wanted(held):
            return UNSTARTED
        try:
            return run_plain(self._handle, held.item)  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001  # whatever it is, the message is not lost
            return _raised(error)

    def _returned(self, started: tuple[HeldItem[Item], Decided], said: object) -> None:
        held, decided = started
        decided(held, said)

    def withdraw(self) -> None:
        """Decide that what waits for a thread was not started."""
        for held, decided in reversed(self._crew.withdraw()):
            decided(held, UNSTARTED)

    async def close(self) -> None:
        """Begin no more calls; those that run cannot be called off."""
        self._crew.close()


async def cancel_all(tasks: set[asyncio.Task[None]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


def _raised(error: Exception) -> Exception:
    """Return what a handler raised; log it unless it is a decision."""
    if not isinstance(error, Decision):
        _log.error("a handler failed, and its message is handed out again", exc_info=error)
    return error
