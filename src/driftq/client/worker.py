"""Workers: take, handle, settle, many at a time, until told to stop.

    take → keep the lease → begin → handler → commit → ack

    taken → waiting → started (holds a slot) → decided → settled
               └── the worker stops ──► given back

Invariants
- At most `concurrency` items are started and not decided. At most that times the rounds of their source are taken
  and not decided: so one round waits while another is handled, and a slot that is free finds the next item there.
- Nothing is taken while 200 items are decided and not settled.
- What is taken and neither settled nor given back has its lease extended every third of it, in one request where the
  source can.

A handler that returns is acked; one that raises is nacked with what it raised, and `Retry` and `DeadLetter` are more
precise. A handler that returns work instead of a result (`client.handlers`) is nacked too. With effects, the key of a
message is begun before its handler runs and committed after it: a message whose effect has happened is acked without
being handled.

To stop is to drain: nothing more is taken, what was started is finished and settled, and what waits goes back at once,
for another worker. (A job at its last delivery is handled instead: going back would give it up.)
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from inspect import isawaitable
from typing import Any, Generic, TypeVar, Unpack

from msgspec import Struct

from driftq.client.client import AsyncClient
from driftq.client.consume import Delivery
from driftq.client.errors import ClientError, ConflictError, LeaseLostError
from driftq.client.handlers import (
    Outcome,
    WorkerOptions,
    check_awaitable,
    check_options,
    check_outcome,
)
from driftq.client.leases import DeadLetter, Decision, Held, Retry
from driftq.client.signals import StopSignals
from driftq.client.sources import GroupSource, QueueSource, Source
from driftq.model.answers import Job
from driftq.seam.entropy import SystemEntropy

Item = TypeVar("Item")
"""What a handler gets."""

_log = logging.getLogger(__name__)

CONCURRENCY = 8
_BUSY_S = 1.0
_REASON_MAX = 500
_SETTLING_MAX = 200


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
        self._busy = 0
        """Slots in use."""
        self._stopping = asyncio.Event()
        self._left = asyncio.Event()
        self._has_left = False
        """Whether the source gives this worker nothing more, so that what goes back is another worker's."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: deque[Held[Item]] = deque()
        self._undecided: dict[tuple[int, int], Held[Item]] = {}
        """What was taken and has no decision yet, by its place: the next delivery of it is the same work."""
        self._leased: set[Held[Item]] = set()
        """What was taken and is neither settled nor given back."""
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
            self.stop()
            try:
                await self._drained(feeding)
            finally:
                self._keeping.cancel()

    def stop(self) -> None:
        """Take nothing more; `run` returns when what was taken is settled. To be called on the loop."""
        self._stopping.set()
        self._left.set()

    async def _drained(self, feeding: asyncio.Task[None]) -> None:
        """Wait until all is finished or given back; call off what takes too long, so that its lease ends."""
        await self._source.leave()
        self._has_left = True
        self._go_on()
        await asyncio.wait({feeding}, timeout=self._source.quit_s)
        feeding.cancel()
        ended = await asyncio.gather(feeding, return_exceptions=True)
        now = asyncio.get_running_loop().time
        deadline = now() + self._drain_s
        while self._tasks and (left_s := deadline - now()) > 0:
            await asyncio.wait(set(self._tasks), timeout=left_s)
        for task in (late := set(self._tasks)):
            _log.warning("a handler takes longer than the %g s that a worker waits when it stops", self._drain_s)
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        if isinstance(ended[0], Exception):
            raise ended[0]

    async def _feed(self) -> None:
        async for held in self._source.taken(self._room, self._lease_ms):
            known = self._undecided.get(held.place)
            if known is not None:
                known.adopt(held)
                continue
            self._undecided[held.place] = held
            self._leased.add(held)
            self._waiting.append(held)
            self._go_on()

    def _go_on(self) -> None:
        """Start what waits, as slots are free. A worker that stops gives back what may go back, and starts the rest."""
        waiting = self._waiting
        if self._stopping.is_set():
            if not self._has_left:
                return
            for held in [held for held in waiting if held.may_return]:
                waiting.remove(held)
                self._spawn(self._give_back(held))
        while waiting and self._busy < self._concurrency:
            self._busy += 1
            self._spawn(self._work(waiting.popleft()))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _room(self) -> int:
        """Return how many more may be taken, once that is at least one; 0 when no more are to be."""
        while not self._stopping.is_set():
            undecided = len(self._undecided)
            free = self._concurrency * self._source.rounds - undecided
            if free > 0 and len(self._leased) - undecided < _SETTLING_MAX:
                return free
            self._left.clear()
            await self._left.wait()
        return 0

    async def _give_back(self, held: Held[Item]) -> None:
        """Let another worker have what no handler has seen."""
        try:
            await held.release()
        except ClientError as error:
            _log.warning("what was taken ahead could not be given back, and waits for the end of its lease: %s", error)
        finally:
            self._undecided.pop(held.place, None)
            self._leased.discard(held)

    async def _work(self, held: Held[Item]) -> None:
        try:
            try:
                said = await self._decided(held)
            finally:
                # What comes after the settling is another delivery, even if it overtakes the answer.
                self._undecided.pop(held.place, None)
                self._busy -= 1
                self._go_on()
                self._left.set()
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
            self._left.set()

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
            begun = [one.work for one in held if one in self._begun]
            if effects is not None and begun:
                try:
                    await effects.renew(begun, self._lease_ms)
                except ClientError as error:
                    _log.warning("keys of effects could not be renewed: %s", error)

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
