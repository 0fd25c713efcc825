"""Calls that settle single jobs, gathered into one request for many.

    gathering → on its way → settled, each job for itself

While no request is on its way, jobs are gathered for one turn of the loop: those that finished together go together.
While one is, the next are gathered until its answer is there, for 2 ms, or until there are 100.
"""

import asyncio
from collections.abc import Awaitable, Callable, Container
from typing import Generic, TypeVar

T = TypeVar("T")

_GATHER_S = 0.002
_ITEMS_MAX = 100


class Gathering(Generic[T]):
    """Settles items through `send`, which gets many and returns the places, from 0, of those that were refused."""

    def __init__(self, send: Callable[[list[T]], Awaitable[Container[int]]]) -> None:
        self._send = send
        self._gathered: list[tuple[T, asyncio.Future[bool]]] = []
        self._timer: asyncio.Handle | None = None
        self._on_their_way: set[asyncio.Task[None]] = set()

    async def settle(self, item: T) -> bool:
        """Settle one item; return False if the server refused it. Raise what the request for it raises."""
        loop = asyncio.get_running_loop()
        settled: asyncio.Future[bool] = loop.create_future()
        self._gathered.append((item, settled))
        if len(self._gathered) >= _ITEMS_MAX:
            self._flush()
        elif self._timer is None:
            self._timer = loop.call_later(_GATHER_S, self._flush) if self._on_their_way else loop.call_soon(self._flush)
        return await settled

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

    async def _sent(self, gathered: list[tuple[T, asyncio.Future[bool]]]) -> None:
        try:
            refused = await self._send([item for item, _ in gathered])
        except BaseException as error:  # noqa: BLE001  # it belongs to those who wait
            for _, settled in gathered:
                if not settled.done():
                    settled.set_exception(error)
            return
        for place, (_, settled) in enumerate(gathered):
            if not settled.done():
                settled.set_result(place not in refused)
