"""Combines calls for single items, such as acks, into one request for many.

    gathered → sent → answered, with one result per item

While no request is under way, items are gathered for two turns of the loop, so that items which finish together share a
request. While a request is under way, items are gathered until its answer comes, for at most 2 ms, until there are 100,
or until the caller calls `hurry` because it expects no more for now.
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
    """The exception of the whole request. An error that is the result of one item is not a `Raised`."""

    error: BaseException


class Gathering(Generic[T, R]):
    """Gathers items and passes them to `send`, which takes a list and returns the result of each item, in order."""

    def __init__(self, send: Callable[[list[T]], Awaitable[Sequence[R]]]) -> None:
        self._send = send
        self._gathered: list[tuple[T, Callable[[R | Raised], object]]] = []
        self._timer: asyncio.Handle | None = None
        self._hurried = False
        self._on_their_way: set[asyncio.Task[None]] = set()

    def add(self, item: T, answered: Callable[[R | Raised], object]) -> None:
        """Add one item; `answered` is called on the loop with its result, or with `Raised`."""
        self._gathered.append((item, answered))
        if len(self._gathered) >= _ITEMS_MAX:
            self._flush()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_GATHER_S, self._flush) if self._on_their_way else loop.call_soon(self._soon)

    def hurry(self) -> None:
        """Send the gathered items in the next turn of the loop, because the caller expects no more for now."""
        if self._gathered and self._on_their_way and not self._hurried:
            self._hurried = True
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_soon(self._flush)

    async def call(self, item: T) -> R:
        """Add one item and return its result. Raise the exception of its request."""
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
        """Wait for one more turn of the loop: handlers that are ending now add their items to this request."""
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
        except BaseException as error:  # noqa: BLE001  # it is passed to the callers
            raised = Raised(error)
            for _, answered in gathered:
                answered(raised)
            return
        for (_, answered), result in zip(gathered, results, strict=True):
            answered(result)
