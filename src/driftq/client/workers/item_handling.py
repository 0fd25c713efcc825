"""Handles the items that a worker takes: each gets a slot, its handler decides about it, and it is settled.

    taken → (ahead) → handled → decided → settling → settled

An item is *ahead* while it waits for a slot. Invariants:

- At most `concurrency` handlers run at the same time. At most `concurrency * rounds` items, with the `rounds` of the
  source, are taken and not decided. So one round of items is ahead while another is handled, and a free slot has its
  next item at once.
- No item is taken while 200 items are decided and not settled.
- `_undecided` maps the position of an item to the item, from when it is taken until its handler has decided. Another
  delivery of the same item in that time is the same work. `_leased` contains the item until it is settled or given
  back; as long, its lease is extended every third of the lease time.
- An item is acked only after its handler has returned. With effects, it is acked after its effect is committed, or
  together with it if the ack commits the key in the same record. If such an ack fails, a commit follows, then another
  ack.
- Settling an item and ending its effect hold no slot. Until the effect has ended, another delivery is the same work.
  Acks are gathered (`client/workers/batched_settlement`); every other item is settled in its own task.
- After `stop`, no handler starts, except for an item that must not be given back. Items ahead are given back when the
  source delivers nothing more to this worker (`release_ahead`), so that they go to other workers.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from msgspec import Struct

from driftq.client.errors import ClientError, ConflictError, LeaseLostError
from driftq.client.workers.handler_runners import UNSTARTED, Runner, cancel_all
from driftq.client.workers.held_work import DeadLetter, Decision, HeldItem, Retry
from driftq.client.workers.work_sources import Effects, WorkerSource

Item = TypeVar("Item")
"""The type of the items that a handler gets: `Job` or `Delivery`."""

_log = logging.getLogger(__name__)

_BUSY_S = 1.0
_REASON_MAX = 500
_SETTLING_MAX = 200


class WorkerStats(Struct):
    """Counts the items of one worker by their result."""

    acked: int = 0
    retried: int = 0
    failed: int = 0
    dead_lettered: int = 0
    skipped: int = 0
    """Items that were acked without running the handler, because their effect had already happened."""
    lost: int = 0
    """Items that could not be settled, because their lease was lost or a call failed; they are delivered again."""


class Handling(Generic[Item]):
    """Handles and settles the items of one worker."""

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
        """An exception of a handler that ends the worker, such as SystemExit."""
        self._left = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._undecided: dict[tuple[int, int], HeldItem[Item]] = {}
        self._leased: set[HeldItem[Item]] = set()
        self._begun: set[HeldItem[Item]] = set()
        """Items whose effect has begun and not ended."""

    def run_by(self, runner: Runner) -> None:
        """Set the runner of the handlers. Must be called on the loop, before an item is taken."""
        self._runner = runner
        self._slots = self._concurrency * (1 if self._source.effects is not None else runner.rounds)

    def begin_no_more(self) -> None:
        """Start no more handlers. May be called from any thread; a call of `stop` on the loop must follow."""
        self._stopping = True

    def stop(self) -> None:
        """Start no more handlers, and take no more items."""
        self._stopping = True
        self._left.set()

    def release_ahead(self) -> None:
        """Give back the items ahead. Must be called after `stop`, when the source delivers nothing more."""
        self._runner.withdraw()
        self._may_release = True
        self._go_on()

    def is_wanted(self, held: HeldItem[Item]) -> bool:
        """Whether the handler of an item should run. May be called from any thread."""
        return not (self._stopping and held.may_return)

    def take(self, held: HeldItem[Item]) -> None:
        """Queue an item for its handler; if it is already being handled, only replace its delivery."""
        same = self._undecided.setdefault(held.place, held)
        if same is not held:
            same.adopt(held)
            return
        self._leased.add(held)
        self._ahead.append(held)
        self._go_on()

    async def room(self) -> int:
        """Wait until taking more items is worth a request; return how many may be taken, 0 after a stop."""
        most = self._concurrency * self._source.rounds
        enough = self._concurrency - self._concurrency // 2
        while not self._stopping:
            undecided = len(self._undecided)
            if most - undecided >= enough and len(self._leased) - undecided < _SETTLING_MAX:
                return most - undecided
            self._left.clear()
            await self._left.wait()
            await asyncio.sleep(0)  # handlers that end in the same turn make more room
        return 0

    def _go_on(self) -> None:
        """Start items ahead while slots are free. After a stop, give back those that may be, and start the rest."""
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

    def _decided(self, held: HeldItem[Item], outcome: object) -> None:
        """Settle an item whose handler has decided, and free its slot for the next."""
        self._slots += 1
        self._conclude(held, outcome)
        if not self._undecided:
            self._source.hurry()

    def _conclude(self, held: HeldItem[Item], outcome: object) -> None:
        if outcome is UNSTARTED:
            self._ahead.appendleft(held)
            self._go_on()
            return
        # A delivery from now on is new work, even if it arrives before the answer to the settling call.
        self._undecided.pop(held.place, None)
        self._left.set()
        self._go_on()
        if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
            self.failure = self.failure or outcome
            self._settled(held)
            self.stop()
        elif isinstance(outcome, Exception):
            self._task(self._settle(held, outcome))
        else:
            held.ack_then(partial(self._acked, held))

    def _acked(self, held: HeldItem[Item], error: BaseException | None) -> None:
        if error is None:
            self._stats.acked += 1
        else:
            self._lost(error)
        self._settled(held)

    def _acked_and_committed(self, effects: Effects, held: HeldItem[Item], error: BaseException | None) -> None:
        """Process the answer to an ack that should also commit the key of the effect."""
        if error is None:
            self._undecided.pop(held.place, None)
            self._acked(held, None)
        else:
            self._task(self._commit_first(effects, held))

    async def _release(self, held: HeldItem[Item]) -> None:
        """Give back an item whose handler was not started, for another worker."""
        try:
            await held.release()
        except ClientError as error:
            _log.warning("an item could not be given back; it is delivered again when its lease ends: %s", error)
        finally:
            self._undecided.pop(held.place, None)
            self._settled(held)

    async def _settle(self, held: HeldItem[Item], outcome: Exception) -> None:
        try:
            if isinstance(outcome, DeadLetter):
                await held.give_up(_reason(outcome))
                self._stats.dead_lettered += 1
            elif isinstance(outcome, Retry):
                await held.nack(_reason(outcome), outcome.after)
                self._stats.retried += 1
            else:
                await held.nack(_reason(outcome), None)
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
            _log.warning("the lease of a handled item was lost, so the item is delivered again: %s", error)
        else:
            _log.warning("a handled item could not be settled, so it is delivered again: %s", error)

    async def _with_effect(self, effects: Effects, held: HeldItem[Item]) -> None:
        """Begin the effect, run the handler, commit. If the effect has already happened, ack without the handler."""
        try:
            outcome = await self._handled_once(effects, held)
        except ClientError as error:
            self._slots += 1
            self._abandon(held, error)
            return
        self._slots += 1
        self._go_on()
        try:
            ended = await self._end_effect(effects, held, outcome)
        except ClientError as error:
            self._abandon(held, error)
            return
        if ended:
            self._conclude(held, outcome)
        else:
            held.ack_then(partial(self._acked_and_committed, effects, held))

    async def _handled_once(self, effects: Effects, held: HeldItem[Item]) -> object:
        """Return the decision of the handler, or the one made without running it. Raise ClientError."""
        try:
            if await effects.begin(held.work, self._lease_ms):
                self._stats.skipped += 1
                return None
        except ConflictError as error:
            return Retry(after=_BUSY_S, reason=error.message)
        self._begun.add(held)
        decision: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def decided(_: object, outcome: object) -> None:
            if not decision.done():
                decision.set_result(outcome)

        self._runner.start(held, decided)
        return await decision

    async def _end_effect(self, effects: Effects, held: HeldItem[Item], outcome: object) -> bool:
        """Commit or fail the effect if it was begun; return False if the ack will commit it. Raise ClientError."""
        if held not in self._begun:
            return True
        if outcome is UNSTARTED:
            await effects.fail(held.work, "the worker was stopped")
        elif isinstance(outcome, BaseException):
            await effects.fail(held.work, _reason(outcome))
        elif held.ack_commits and not _result(outcome):
            return False
        else:
            await effects.commit(held.work, _result(outcome), self._lease_ms)
        self._begun.discard(held)
        return True

    async def _commit_first(self, effects: Effects, held: HeldItem[Item]) -> None:
        """Commit an effect after the ack that should have committed it failed, so that it is not repeated; then ack."""
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
        """Extend all leases, every third of the lease time. A failure is logged; the next round tries again."""
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
        """Wait until all items are settled, up to `drain_s` seconds; log each item that takes longer."""
        if not await self._settled_within(drain_s):
            for _ in self._leased:
                _log.warning("a handler was still running %g s after the worker was stopped", drain_s)

    async def _settled_within(self, seconds: float) -> bool:
        """Wait until all items are settled, up to this many seconds. Return whether they are."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._leased:
                    self._left.clear()
                    await self._left.wait()
        return not self._leased

    async def close(self, give_back_s: float) -> None:
        """Cancel the handlers that still run, and give their items back for up to `give_back_s` seconds; then cancel
        the tasks that still run.
        """
        if await self._runner.close() and not await self._settled_within(give_back_s):
            _log.warning(
                "%d items could not be given back within %g s; each is delivered again when its lease ends",
                len(self._leased),
                give_back_s,
            )
        await cancel_all(self._tasks)


def _reason(outcome: object) -> str:
    text = str(outcome)
    return (text if isinstance(outcome, Decision) else f"{type(outcome).__name__}: {text}")[:_REASON_MAX]


def _result(outcome: object) -> bytes:
    """Return the result of a handler as bytes: text and bytes are stored, anything else is dropped."""
    if isinstance(outcome, str):
        return outcome.encode()
    return outcome if isinstance(outcome, bytes) else b""
