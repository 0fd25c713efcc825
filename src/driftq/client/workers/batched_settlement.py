"""Calls about single items, gathered into one request for many.

    gathering → on its way → answered, each item for itself

While no request is on its way, items are gathered for two turns of the loop: those that come together go together.
While one is, the next are gathered until its answer is there, for 2 ms, until there are 100, or until the caller says
that nothing more is to come for now.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")
R = TypeVar("R")

_GATHER_S = 0.002
_ITEMS_MAX = 100


class Raised(Struct, frozen=True):
    """What the request for many items raised. An error that is the result of one item is not this."""

    error: BaseException


class Gathering(Generic[T, R]):
    """Makes calls about items through `send`, which gets many and returns the result of each, in order."""

    def __init__(self, send: Callable[[list[T]], Awaitable[Sequence[R]]]) -> None:
        self._send = send
        self._gathered: list[tuple[T, Callable[[R | Raised], object]]] = []
        self._timer: asyncio.Handle | None = None
        self._hurried = False
        self._on_their_way: set[asyncio.Task[None]] = set()

    def add(self, item: T, answered: Callable[[R | Raised], object]) -> None:
        """Make the call about one item; `answered` is called on the loop with its result."""
        self._gathered.append((item, answered))
        if len(self._gathered) >= _ITEMS_MAX:
            self._flush()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_GATHER_S, self._flush) if self._on_their_way else loop.call_soon(self._soon)

    def hurry(self) -> None:
        """Send what is gathered in the next turn, for nothing more is to come for now."""
        if self._gathered and self._on_their_way and not self._hurried:
            self._hurried = True
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_soon(self._flush)

    async def call(self, item: T) -> R:
        """Return the result of one item. Raise what the request for it raises."""
        waiting: asyncio.Future[R | Raised] = asyncio.get_running_loop().create_future()

        def answered(result: R | Raised) -> None:
            if not waiting.done():
                waiting.set_result(result)

        self.add(item, answered)
        result = await waiting
        if isinstance(result, Raised):
            raise result.error
        return result

    def _soon(self) -> None:
        """Wait for one more turn: what was waiting for a slot may be ending at this moment."""
        self._timer = asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._hurried = False
        gathered, self._gathered = self._gathered, []
        if gathered:
            task = asyncio.get_running_loop().create_task(self._sent(gathered))
            self._on_their_way.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._on_their_way.discard(task)
        if not self._on_their_way:
            self._flush()

    async def _sent(self, gathered: list[tuple[T, Callable[[R | Raised], object]]]) -> None:
        try:
            results = await self._send([item for item, _ in gathered])
        except BaseException as error:  # noqa: BLE001  # it belongs to those who wait
            raised = Raised(error)
            for _, answered in gathered:
                answered(raised)
            return
        for (_, answered), result in zip(gathered, results, strict=True):
            answered(result)
