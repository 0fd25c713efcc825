"""What becomes of the items that a worker takes: each is handled in a slot, decided on, and settled.

    taken → (ahead) → handled → decided → settling → settled

What always holds:

- At most `concurrency` handlers run at a time. At most that times the rounds of their source are taken and not decided:
  so one round is ahead while another is handled, and a slot that is free finds the next item there.
- Nothing is taken while 200 items are decided and not settled.
- `_undecided` has an item from the moment it is taken until its handler has decided, by its place: another delivery of
  it meanwhile is the same work. `_leased` has it until it is settled or given back: so long its lease is extended,
  every third of it.
- An item is acked only after its handler has returned, and with effects after its effect is committed, or with it where
  the ack commits the key in the same record. If such an ack fails, a commit follows, and then another ack.
- Settling holds no slot, nor does the end of an effect, before which another delivery is the same work. Acks are
  gathered (`client/workers/batched_settlement`); everything else is settled by a task of its own.
- After `stop`, no handler begins, except for an item that must not go back. Items ahead go back when the source gives
  this worker nothing more (`release_ahead`), so that they go to another.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

from msgspec import Struct

from driftq.client.errors import ClientError, ConflictError, LeaseLostError
from driftq.client.workers.handler_runners import UNSTARTED, Runner, cancel_all
from driftq.client.workers.held_work import DeadLetter, Decision, HeldItem, Retry
from driftq.client.workers.work_sources import Effects, WorkerSource

Item = TypeVar("Item")
"""What a handler gets."""

_log = logging.getLogger(__name__)

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


class Handling(Generic[Item]):
    """Handles and settles what it is given."""

    def __init__(self, source: WorkerSource[Item], stats: WorkerStats, concurrency: int, lease_ms: int) -> None:
        self._source = source
        self._stats = stats
        self._concurrency = concurrency
        self._lease_ms = lease_ms
        self._runner: Runner
        self._slots = 0
        self._ahead: deque[HeldItem[Item]] = deque()
        self._stopping = False
        self._may_release = False
        self.failure: BaseException | None = None
        """What a handler raised to end the worker, as SystemExit."""
        self._left = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._undecided: dict[tuple[int, int], HeldItem[Item]] = {}
        self._leased: set[HeldItem[Item]] = set()
        self._begun: set[HeldItem[Item]] = set()
        """What has begun its effect and not ended it."""

    def run_by(self, runner: Runner) -> None:
        """Have handlers run. To be called on the loop, before anything is taken."""
        self._runner = runner
        self._slots = self._concurrency * (1 if self._source.effects is not None else runner.rounds)

    def begin_no_more(self) -> None:
        """Begin no more handlers, from here on. May be called from any thread; `stop` on the loop is to follow."""
        self._stopping = True

    def stop(self) -> None:
        """Begin no more handlers."""
        self._stopping = True
        self._left.set()

    def release_ahead(self) -> None:
        """Give back what is ahead. To be called after `stop`, when the source gives this worker nothing more."""
        self._runner.withdraw()
        self._may_release = True
        self._go_on()

    def is_wanted(self, held: HeldItem[Item]) -> bool:
        """Whether a handler is to run. May be called from any thread."""
        return not (self._stopping and held.may_return)

    def take(self, held: HeldItem[Item]) -> None:
        """Have an item handled, or note that one that is being handled was delivered again."""
        same = self._undecided.setdefault(held.place, held)
        if same is not held:
            same.adopt(held)
            return
        self._leased.add(held)
        self._ahead.append(held)
        self._go_on()

    async def room(self) -> int:
        """Return how many more may be taken, once that is worth a request; 0 when no more are to be."""
        most = self._concurrency * self._source.rounds
        enough = self._concurrency - self._concurrency // 2
        while not self._stopping:
            undecided = len(self._undecided)
            if most - undecided >= enough and len(self._leased) - undecided < _SETTLING_MAX:
                return most - undecided
            self._left.clear()
            await self._left.wait()
            await asyncio.sleep(0)  # handlers that end at once leave room for more
        return 0

    def _go_on(self) -> None:
        """Start what is ahead, as slots are free. After a stop, give back what may go back, and start the rest."""
        ahead = self._ahead
        if self._stopping:
            if not self._may_release:
                return
            for held in [held for held in ahead if held.may_return]:
                ahead.remove(held)
                self._task(self._release(held))
        while ahead and self._slots:
            self._slots -= 1
            self._start(ahead.popleft())

    def _start(self, held: HeldItem[Item]) -> None:
        effects = self._source.effects
        if effects is None:
            self._runner.start(held, self._decided)
        else:
            self._task(self._with_effect(effects, held))

    def _decided(self, held: HeldItem[Item], said: object) -> None:
        """Settle what a handler has decided, and give its slot to the next."""
        self._slots += 1
        self._conclude(held, said)
        if not self._undecided:
            self._source.hurry()

    def _conclude(self, held: HeldItem[Item], said: object) -> None:
        if said is UNSTARTED:
            self._ahead.appendleft(held)
            self._go_on()
            return
        # What comes after the settling is another delivery, even if it overtakes the answer.
        self._undecided.pop(held.place, None)
        self._left.set()
        self._go_on()
        if isinstance(said, BaseException) and not isinstance(said, Exception):
            self.failure = self.failure or said
            self._settled(held)
            self.stop()
        elif isinstance(said, Exception):
            self._task(self._settle(held, said))
        else:
            held.ack_then(partial(self._acked, held))

    def _acked(self, held: HeldItem[Item], error: BaseException | None) -> None:
        if error is None:
            self._stats.acked += 1
        else:
            self._lost(error)
        self._settled(held)

    def _acked_and_committed(self, effects: Effects, held: HeldItem[Item], error: BaseException | None) -> None:
        """Take the answer to an ack that was to commit the key of its work as well."""
        if error is None:
            self._undecided.pop(held.place, None)
            self._acked(held, None)
        else:
            self._task(self._commit_first(effects, held))

    async def _release(self, held: HeldItem[Item]) -> None:
        """Let another worker have what no handler has seen."""
        try:
            await held.release()
        except ClientError as error:
            _log.warning("what was taken ahead could not be given back, and waits for the end of its lease: %s", error)
        finally:
            self._undecided.pop(held.place, None)
            self._settled(held)

    async def _settle(self, held: HeldItem[Item], said: Exception) -> None:
        try:
            if isinstance(said, DeadLetter):
                await held.give_up(_reason(said))
                self._stats.dead_lettered += 1
            elif isinstance(said, Retry):
                await held.nack(_reason(said), said.after)
                self._stats.retried += 1
            else:
                await held.nack(_reason(said), None)
                self._stats.failed += 1
        except ClientError as error:
            self._lost(error)
        finally:
            self._settled(held)

    def _settled(self, held: HeldItem[Item]) -> None:
        self._leased.discard(held)
        self._begun.discard(held)
        self._left.set()

    def _lost(self, error: BaseException) -> None:
        self._stats.lost += 1
        if isinstance(error, LeaseLostError):
            _log.warning("what was handled is not this worker's any more, and is handled again: %s", error)
        else:
            _log.warning("what was handled could not be settled, and is handled again: %s", error)

    async def _with_effect(self, effects: Effects, held: HeldItem[Item]) -> None:
        """Begin the effect, run the handler, commit; an effect that has happened before is acked without a handler."""
        try:
            said = await self._handled_once(effects, held)
        except ClientError as error:
            self._slots += 1
            self._abandon(held, error)
            return
        self._slots += 1
        self._go_on()
        try:
            ended = await self._end_effect(effects, held, said)
        except ClientError as error:
            self._abandon(held, error)
            return
        if ended:
            self._conclude(held, said)
        else:
            held.ack_then(partial(self._acked_and_committed, effects, held))

    async def _handled_once(self, effects: Effects, held: HeldItem[Item]) -> object:
        """Return what the handler decided, or what is decided without it. Raise ClientError."""
        try:
            if await effects.begin(held.work, self._lease_ms):
                self._stats.skipped += 1
                return None
        except ConflictError as error:
            return Retry(after=_BUSY_S, reason=error.message)
        self._begun.add(held)
        decision: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def decided(_: object, said: object) -> None:
            if not decision.done():
                decision.set_result(said)

        self._runner.start(held, decided)
        return await decision

    async def _end_effect(self, effects: Effects, held: HeldItem[Item], said: object) -> bool:
        """Commit or fail the effect if it was begun; return False if the ack is to commit it. Raise ClientError."""
        if held not in self._begun:
            return True
        if said is UNSTARTED:
            await effects.fail(held.work, "the worker stops")
        elif isinstance(said, BaseException):
            await effects.fail(held.work, _reason(said))
        elif held.ack_commits and not _result(said):
            return False
        else:
            await effects.commit(held.work, _result(said), self._lease_ms)
        self._begun.discard(held)
        return True

    async def _commit_first(self, effects: Effects, held: HeldItem[Item]) -> None:
        """Commit an effect whose ack was to do that and failed, then ack again: it is not to happen again."""
        try:
            await effects.commit(held.work, b"", self._lease_ms)
        except ClientError as error:
            self._abandon(held, error)
        else:
            self._begun.discard(held)
            self._conclude(held, None)

    def _abandon(self, held: HeldItem[Item], error: ClientError) -> None:
        self._lost(error)
        self._undecided.pop(held.place, None)
        self._go_on()
        self._settled(held)

    def _task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def keep(self) -> None:
        """Extend all leases, every third of one; a try that fails is followed by the next one."""
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

    async def drained(self, drain_s: float) -> None:
        """Wait until everything is settled; what takes longer than `drain_s` is called off, and its lease ends."""
        try:
            async with asyncio.timeout(drain_s):
                while self._leased:
                    self._left.clear()
                    await self._left.wait()
        except TimeoutError:
            for _ in self._leased:
                _log.warning("a handler takes longer than the %g s that a worker waits when it stops", drain_s)

    async def close(self) -> None:
        """Call off what runs."""
        await self._runner.close()
        await cancel_all(self._tasks)


def _reason(said: object) -> str:
    text = str(said)
    return (text if isinstance(said, Decision) else f"{type(said).__name__}: {text}")[:_REASON_MAX]


def _result(said: object) -> bytes:
    """What a handler returns as the result of its work: text and bytes as they are, anything else is not kept."""
    if isinstance(said, str):
        return said.encode()
    return said if isinstance(said, bytes) else b""
