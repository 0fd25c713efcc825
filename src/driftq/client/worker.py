"""Workers: take, handle, settle, many at a time, until told to stop.

    take → keep the lease → begin → handler → commit → ack

Every third of a lease, all leases are extended, in one request where the source can. A handler that returns is acked;
one that raises is nacked with what it raised, and `Retry` and `DeadLetter` are more precise. A handler that returns
work instead of a result (`client.handlers`) is nacked too. With effects, the key of a message is begun before its
handler runs and committed after it: a message whose effect has happened is acked without being handled.

A slot is held while a handler runs. Jobs of a queue are taken ahead, at most one round of slots, so that a slot that is
free finds the next job there; settling does not hold a slot.

To stop is to drain: nothing more is taken, what was started is finished and settled, and jobs that were taken ahead go
back at once, for another worker. (A job at its last delivery is handled instead: going back would give it up.)
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from inspect import isawaitable
from typing import Generic, TypeVar, Unpack

from msgspec import Struct

from driftq.client.client import AsyncClient, Client
from driftq.client.consume import Delivery
from driftq.client.errors import ClientError, ConflictError, LeaseLostError
from driftq.client.handlers import (
    Outcome,
    WorkerOptions,
    check_awaitable,
    check_options,
    check_outcome,
    check_plain,
    run_plain,
)
from driftq.client.leases import DeadLetter, Decision, Held, Retry
from driftq.client.signals import StopSignals
from driftq.client.sources import GroupSource, QueueSource, Source
from driftq.model.answers import Job
from driftq.seam.entropy import SystemEntropy
from driftq.seam.threads import Threads

Item = TypeVar("Item")
"""What a handler gets."""

_log = logging.getLogger(__name__)

CONCURRENCY = 8
_BUSY_S = 1.0
_REASON_MAX = 500


class WorkerStats(Struct):
    """What a worker has done."""

    acked: int = 0
    retried: int = 0
    failed: int = 0
    dead_lettered: int = 0
    skipped: int = 0
    """Acked without a handler, for their effect had happened."""
    lost: int = 0
    """Handled, and somebody else's by then."""


class AsyncWorker(Generic[Item]):
    """Handles messages or jobs with a coroutine function. Make one with `group` or `queue`; `run` it; `stop` it."""

    def __init__(
        self,
        source: Source[Item],
        handle: Callable[[Item], Awaitable[Outcome]],
        options: WorkerOptions,
    ) -> None:
        check_awaitable(handle)
        self.stats = WorkerStats()
        self._source = source
        self._handle = handle
        self._warned = False
        self._concurrency = options.get("concurrency", CONCURRENCY)
        self._lease_ms = options.get("lease_ms", 30_000)
        self._drain_s = options.get("drain_s", 30.0)
        self._slots = asyncio.Semaphore(self._concurrency)
        self._stopping = asyncio.Event()
        self._left = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[tuple[int, int], Held[Item]] = {}
        """What was taken and has no decision yet, by its place: the next delivery of it is the same work."""
        self._leased: set[Held[Item]] = set()
        """What was taken and is not settled."""
        self._begun: set[Held[Item]] = set()
        """What has begun its effect and not ended it."""

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
        source = GroupSource(client, topic, group, options.get("owner") or _own_name(client), effects=effects)
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
        """Return a worker for the jobs of a queue; `effects` names a topic of the broker that keeps which are done.

        Raise TypeError for an unknown option or a generator function.
        """
        check_options(options)
        source = QueueSource(client, name, options.get("owner") or _own_name(client), effects=effects)
        return AsyncWorker(source, handle, options)

    async def run(self) -> None:
        """Work until `stop`, SIGTERM or SIGINT; then finish what was taken. Raises what ends it otherwise."""
        loop = asyncio.get_running_loop()
        with StopSignals(loop, self.stop):
            self._keeping = loop.create_task(self._keep())
            feeding = loop.create_task(self._feed())
            stopping = loop.create_task(self._stopping.wait())
            await asyncio.wait({feeding, stopping}, return_when=asyncio.FIRST_COMPLETED)
            self._stopping.set()
            self._left.set()
            try:
                await self._drained(feeding)
            finally:
                self._keeping.cancel()

    def stop(self) -> None:
        """Take nothing more; `run` returns when what was taken is settled. To be called on the loop."""
        self._stopping.set()
        self._left.set()

    async def _drained(self, feeding: asyncio.Task[None]) -> None:
        """Everything finished, or called off when patience ends; its lease ends then, and somebody else has it."""
        await asyncio.wait({feeding}, timeout=self._source.quit_s)
        feeding.cancel()
        ended = await asyncio.gather(feeding, return_exceptions=True)
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=self._drain_s)
            for task in late:
                _log.warning("a handler takes longer than the %g s that a worker waits when it stops", self._drain_s)
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        if isinstance(ended[0], Exception):
            raise ended[0]

    async def _feed(self) -> None:
        async for held in self._source.taken(self._room, self._lease_ms):
            running = self._running.get(held.place)
            if running is not None:
                running.adopt(held)
                continue
            self._running[held.place] = held
            task = asyncio.get_running_loop().create_task(self._work(held))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._left.set()

    async def _room(self) -> int:
        """How many more may be taken, once that is at least one; 0 when no more are to be."""
        while not self._stopping.is_set():
            most = self._concurrency * self._source.rounds
            if len(self._tasks) < most:
                return most - len(self._tasks)
            self._left.clear()
            await self._left.wait()
        return 0

    async def _work(self, held: Held[Item]) -> None:
        self._leased.add(held)
        try:
            async with self._slots:
                if self._stopping.is_set() and held.may_return:
                    said: object = None
                    unstarted = True
                else:
                    said, unstarted = await self._decided(held), False
            # What comes after the settling is another delivery, even if it overtakes the answer.
            self._running.pop(held.place, None)
            if unstarted:
                await held.nack("the worker stops", 0.0)
            else:
                await self._settle(held, said)
        except LeaseLostError as error:
            self.stats.lost += 1
            _log.warning("what was handled is not this worker's any more, and is handled again: %s", error)
        except ClientError as error:
            self.stats.lost += 1
            _log.warning("what was handled could not be settled, and is handled again: %s", error)
        finally:
            self._leased.discard(held)
            self._begun.discard(held)
            self._running.pop(held.place, None)

    async def _keep(self) -> None:
        """Extend all leases, again and again; a try that fails is followed by the next one."""
        while True:
            await asyncio.sleep(self._lease_ms / 3000)
            held = list(self._leased)
            if not held:
                continue
            try:
                await self._source.extend(held, self._lease_ms)
            except ClientError as error:
                _log.warning("leases could not be extended: %s", error)
            effects = self._source.effects
            if effects is not None:
                begun = [one.work for one in held if one in self._begun]
                renewed = await asyncio.gather(
                    *(effects.renew(work, self._lease_ms) for work in begun), return_exceptions=True
                )
                for failed in renewed:
                    if failed is not None:
                        _log.warning("the key of an effect could not be renewed: %s", failed)

    async def _decided(self, held: Held[Item]) -> object:
        """What the handler says, its effect begun before and committed behind; None where it has happened before."""
        effects = self._source.effects
        if effects is not None:
            try:
                if await effects.begin(held.work, self._lease_ms):
                    self.stats.skipped += 1
                    return None
                self._begun.add(held)
            except ConflictError as error:
                return Retry(after=_BUSY_S, reason=error.message)
        said = await self._said(held.item)
        if effects is not None:
            if isinstance(said, Exception):
                await effects.fail(held.work, _reason(said))
            else:
                await effects.commit(held.work, _result(said), self._lease_ms)
        return said

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
            if not isinstance(error, Decision):
                _log.exception("a handler failed, and its message is handed out again")
            return error

    async def _settle(self, held: Held[Item], said: object) -> None:
        if isinstance(said, DeadLetter):
            await held.give_up(_reason(said))
            self.stats.dead_lettered += 1
        elif isinstance(said, Retry):
            await held.nack(_reason(said), said.after)
            self.stats.retried += 1
        elif isinstance(said, Exception):
            await held.nack(_reason(said), None)
            self.stats.failed += 1
        else:
            await held.ack()
            self.stats.acked += 1


class Worker(Generic[Item]):
    """Handles messages or jobs with a plain function, in threads. Make one with `group` or `queue`; `run` it.

    It runs an `AsyncWorker` on a loop of its own.
    """

    def __init__(
        self, client: Client, make: Callable[[AsyncClient, Threads], AsyncWorker[Item]], concurrency: int
    ) -> None:
        self.stats = WorkerStats()
        self._client = client
        self._make = make
        self._concurrency = concurrency
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

        def make(twin: AsyncClient, threads: Threads) -> AsyncWorker[Delivery]:
            return AsyncWorker.group(
                twin, topic, group, lambda item: threads.call(run_plain, handle, item), effects=effects, **options
            )

        return Worker(client, make, options.get("concurrency", CONCURRENCY))

    @staticmethod
    def queue(
        client: Client,
        name: str,
        handle: Callable[[Job], Outcome],
        *,
        effects: str | None = None,
        **options: Unpack[WorkerOptions],
    ) -> "Worker[Job]":
        """Return a worker for the jobs of a queue; `effects` names a topic of the broker that keeps which are done.

        Raise TypeError for an unknown option, a coroutine function or a generator function.
        """
        check_options(options)
        check_plain(handle)

        def make(twin: AsyncClient, threads: Threads) -> AsyncWorker[Job]:
            return AsyncWorker.queue(
                twin, name, lambda item: threads.call(run_plain, handle, item), effects=effects, **options
            )

        return Worker(client, make, options.get("concurrency", CONCURRENCY))

    def run(self) -> None:
        """Work until `stop`, or in the main thread SIGTERM or SIGINT; then finish what was taken."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        threads = Threads(self._concurrency, "driftq-worker")
        try:
            async with self._client.asynchronous() as twin:
                self._worker = self._make(twin, threads)
                self._worker.stats = self.stats
                self._loop = asyncio.get_running_loop()
                if self._stopped:
                    self._worker.stop()
                await self._worker.run()
        finally:
            self._loop = None
            threads.close()

    def stop(self) -> None:
        """Take nothing more; `run` returns when what was taken is settled. May be called from any thread."""
        self._stopped = True
        loop, worker = self._loop, self._worker
        if loop is not None and worker is not None:
            with suppress(RuntimeError):  # the loop has just ended, and so has the worker
                loop.call_soon_threadsafe(worker.stop)


def _own_name(client: AsyncClient) -> str:
    """Two workers of one client do not settle each other's work."""
    return f"{client.node}.{SystemEntropy().token(3).hex()}"


def _reason(said: Exception) -> str:
    text = str(said)
    return (text if isinstance(said, Decision) else f"{type(said).__name__}: {text}")[:_REASON_MAX]


def _result(said: object) -> bytes:
    """What a handler returns as the result of its work: text and bytes as they are, anything else is not kept."""
    if isinstance(said, str):
        return said.encode()
    return said if isinstance(said, bytes) else b""
