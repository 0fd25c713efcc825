"""A worker for plain functions: it runs them in threads and uses an `AsyncWorker` on its own event loop."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Unpack

from driftq.client.client import AsyncClient, Client
from driftq.client.messages import Delivery
from driftq.client.workers.handlers import Item, Outcome, WorkerOptions, check_options, check_plain
from driftq.client.workers.item_handling import WorkerStats
from driftq.client.workers.work_sources import GroupSource, QueueSource
from driftq.client.workers.worker import AsyncWorker, own_name
from driftq.model.v0_answers import Job


class Worker(Generic[Item]):
    """Handles messages or jobs with a plain function, in threads. Make one with `group` or `queue`, then call `run`."""

    def __init__(self, client: Client, make: Callable[[AsyncClient, WorkerStats], AsyncWorker[Item]]) -> None:
        self.stats = WorkerStats()
        self._client = client
        self._make = make
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._worker: AsyncWorker[Item] | None = None

    @staticmethod
    def group(
        client: Client,
        topic: str,
        group: str,
        handle: Callable[[Delivery], Outcome],
        *,
        effects: bool = False,
        **options: Unpack[WorkerOptions],
    ) -> "Worker[Delivery]":
        """Return a worker for the messages of a group; with `effects`, each key is handled at most once.

        Raise TypeError for an unknown option, a coroutine function or a generator function.
        """
        check_options(options)
        check_plain(handle)

        def make(twin: AsyncClient, stats: WorkerStats) -> AsyncWorker[Delivery]:
            source = GroupSource(twin, topic, group, options.get("owner") or own_name(twin), effects=effects)
            return AsyncWorker(source, handle, options, in_threads=True, stats=stats)

        return Worker(client, make)

    @staticmethod
    def queue(
        client: Client,
        name: str,
        handle: Callable[[Job], Outcome],
        *,
        effects: str | None = None,
        **options: Unpack[WorkerOptions],
    ) -> "Worker[Job]":
        """Return a worker for the jobs of a queue; `effects` is a broker topic that stores which are done.

        Raise TypeError for an unknown option, a coroutine function or a generator function.
        """
        check_options(options)
        check_plain(handle)

        def make(twin: AsyncClient, stats: WorkerStats) -> AsyncWorker[Job]:
            source = QueueSource(twin, name, options.get("owner") or own_name(twin), effects=effects)
            return AsyncWorker(source, handle, options, in_threads=True, stats=stats)

        return Worker(client, make)

    def run(self) -> None:
        """Work until `stop`, or in the main thread until SIGTERM or SIGINT; then finish the handlers that run."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        try:
            async with self._client.asynchronous() as twin:
                self._worker = self._make(twin, self.stats)
                self._loop = asyncio.get_running_loop()
                if self._stopped:
                    self._worker.stop()
                await self._worker.run()
        finally:
            self._loop = None

    def stop(self) -> None:
        """Take no more items; `run` returns when those it holds are settled. May be called from any thread."""
        self._stopped = True
        loop, worker = self._loop, self._worker
        if loop is not None and worker is not None:
            worker.handling.begin_no_more()
            with suppress(RuntimeError):  # the loop has just ended, and so has the worker
                loop.call_soon_threadsafe(worker.stop)
