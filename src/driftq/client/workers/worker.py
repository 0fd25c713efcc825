"""Workers on an asyncio loop: they take items, run handlers and settle the items, several at a time, until stopped.

    take → extend the lease → begin → handler → commit → ack

If the handler returns, its item is acked. If it raises, the item is nacked with the exception as the reason; `Retry`
and `DeadLetter` choose the delay or the dead letters. An item whose handler returns work instead of a result
(`client/workers/handlers`) is nacked too. With effects, the key of an item is begun before its handler runs and
committed after it; an item whose effect has already happened is acked without running the handler. The states of an
item are in `client/workers/item_handling`.

A worker that stops takes no more items, finishes and settles those whose handlers run, and gives the waiting ones back
for other workers. It still handles a waiting job at its last delivery, because giving that back would make it a dead
letter. A worker whose `run` is cancelled gives everything back: an item whose handler was cancelled is nacked without a
delay, so it counts as an attempt, and its effect as failed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar, Unpack

from driftq.client.client import AsyncClient
from driftq.client.messages import Delivery
from driftq.client.workers.handler_runners import LoopRunner, Runner, ThreadRunner
from driftq.client.workers.handlers import Outcome, WorkerOptions, check_awaitable, check_options
from driftq.client.workers.item_handling import Handling, WorkerStats
from driftq.client.workers.stop_signals import StopSignals
from driftq.client.workers.work_sources import GroupSource, QueueSource, WorkerSource
from driftq.model.v0_answers import Job
from driftq.system.entropy import SystemEntropy

Item = TypeVar("Item")
"""The type of the items that a handler gets: `Job` or `Delivery`."""

CONCURRENCY = 8
_LEAVE_S, _GIVE_BACK_S = 5.0, 5.0
"""How long a cancelled worker takes at most to leave its source, and then to give back its items."""


class AsyncWorker(Generic[Item]):
    """Handles messages or jobs with a coroutine function. Make one with `group` or `queue`, then await `run`."""

    def __init__(
        self,
        source: WorkerSource[Item],
        handle: Callable[[Item], Any],
        options: WorkerOptions,
        *,
        in_threads: bool = False,
        stats: WorkerStats | None = None,
    ) -> None:
        if not in_threads:
            check_awaitable(handle)
        self.stats = stats or WorkerStats()
        self._source = source
        self._handle = handle
        self._in_threads = in_threads
        self._concurrency = options.get("concurrency", CONCURRENCY)
        self._lease_ms = options.get("lease_ms", 30_000)
        self._drain_s = options.get("drain_s", 30.0)
        self._stopping = asyncio.Event()
        self.handling = Handling(source, self.stats, self._concurrency, self._lease_ms)

    @staticmethod
    def group(
        client: AsyncClient,
        topic: str,
        group: str,
        handle: Callable[[Delivery], Awaitable[Outcome]],
        *,
        effects: bool = False,
        **options: Unpack[WorkerOptions],
    ) -> "AsyncWorker[Delivery]":
        """Return a worker for the messages of a group; with `effects`, each key is handled at most once.

        Raise TypeError for an unknown option or a generator function.
        """
        check_options(options)
        source = GroupSource(client, topic, group, options.get("owner") or own_name(client), effects=effects)
        return AsyncWorker(source, handle, options)

    @staticmethod
    def queue(
        client: AsyncClient,
        name: str,
        handle: Callable[[Job], Awaitable[Outcome]],
        *,
        effects: str | None = None,
        **options: Unpack[WorkerOptions],
    ) -> "AsyncWorker[Job]":
        """Return a worker for the jobs of a queue; `effects` is a broker topic that stores which are done.

        Raise TypeError for an unknown option or a generator function.
        """
        check_options(options)
        source = QueueSource(client, name, options.get("owner") or own_name(client), effects=effects)
        return AsyncWorker(source, handle, options)

    async def run(self) -> None:
        """Work until `stop`, SIGTERM or SIGINT; then finish the handlers that run. Raise an error that ends it.

        If this call is cancelled, cancel the handlers and give all items back, within ten seconds.
        """
        loop, handling = asyncio.get_running_loop(), self.handling
        runner: Runner = LoopRunner(self._handle)
        if self._in_threads:
            runner = ThreadRunner(self._handle, self._concurrency, handling.is_wanted)
        handling.run_by(runner)
        with StopSignals(loop, self.stop):
            keeping, feeding = loop.create_task(handling.keep()), loop.create_task(self._feed())
            stopping = loop.create_task(self._stopping.wait())
            try:
                await asyncio.wait({feeding, stopping}, return_when=asyncio.FIRST_COMPLETED)
                ended = await self._leave(feeding)
                await handling.drained(self._drain_s)
            except asyncio.CancelledError:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LEAVE_S):
                        await self._leave(feeding)
                raise
            finally:
                for task in (keeping, feeding, stopping):
                    task.cancel()
                await handling.close(_GIVE_BACK_S)
        failure = handling.failure or ended
        if failure is not None and not isinstance(failure, asyncio.CancelledError):
            raise failure

    def stop(self) -> None:
        """Take no more items; `run` returns when those it holds are settled. Must be called on the loop."""
        self._stopping.set()
        self.handling.stop()

    async def _leave(self, feeding: asyncio.Task[None]) -> BaseException | None:
        """Take no more items, and give back those ahead. Return the error that has ended `feeding`."""
        self.stop()
        await self._source.leave()
        self.handling.release_ahead()
        await asyncio.wait({feeding}, timeout=self._source.quit_s)
        feeding.cancel()
        (ended,) = await asyncio.gather(feeding, return_exceptions=True)
        return ended

    async def _feed(self) -> None:
        async for held in self._source.taken(self.handling.room, self._lease_ms):
            self.handling.take(held)


def own_name(client: AsyncClient) -> str:
    """Return a unique name for a worker, so that two workers of one client cannot settle each other's items."""
    return f"{client.node}.{SystemEntropy().token(3).hex()}"
