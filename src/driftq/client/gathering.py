"""Calls about single items, gathered into one request for many.

    gathering → on its way → answered, each item for itself

While no request is on its way, items are gathered for one turn of the loop: those that come together go together.
While one is, the next are gathered until its answer is there, for 2 ms, or until there are 100.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_GATHER_S = 0.002
_ITEMS_MAX = 100


class Gathering(Generic[T, R]):
    """Makes calls about items through `send`, which gets many and returns the result of each, in order."""

    def __init__(self, send: Callable[[list[T]], Awaitable[Sequence[R]]]) -> None:
        self._send = send
        self._gathered: list[tuple[T, asyncio.Future[R]]] = []
        self._timer: asyncio.Handle | None = None
        self._on_their_way: set[asyncio.Task[None]] = set()

    async def call(self, item: T) -> R:
        """Return the result of one item. Raise what the request for it raises."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[R] = loop.create_future()
        self._gathered.append((item, answered))
        if len(self._gathered) >= _ITEMS_MAX:
            self._flush()
        elif self._timer is None:
            self._timer = loop.call_later(_GATHER_S, self._flush) if self._on_their_way else loop.call_soon(self._flush)
        return await answered

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        gathered, self._gathered = self._gathered, []
        if gathered:
            task = asyncio.get_running_loop().create_task(self._sent(gathered))
            self._on_their_way.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._on_their_way.discard(task)
        if not self._on_their_way:
            self._flush()

    async def _sent(self, gathered: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            results = await self._send([item for item, _ in gathered])
        except BaseException as error:  # noqa: BLE001  # it belongs to those who wait
            for _, answered in gathered:
                if not answered.done():
                    answered.set_exception(error)
            return
        for (_, answered), result in zip(gathered, results, strict=True):
            if not answered.done():
                answered.set_result(result)
