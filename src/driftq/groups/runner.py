"""A worker in this process (http-v1 §13.4): takes the messages of a group and has each effect happen once.

    delivered → begin ─done already─► ack
                  └─► handle ─ok─► commit → ack        handle ─raised─► fail → nack
                        └─ a renewal refused ─► nack `idem_lease_lost: …`; what comes of the work is not kept

While a message is worked on, its lease is renewed every third of it, and with it that of the delivery. A lease that is
lost is somebody else's work: neither committed nor acked here.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from driftq.errors import DriftQError
from driftq.groups.broker import Broker
from driftq.groups.consume_scope import LeaseHeldError, LeaseLostError
from driftq.groups.ports import Delivery, Place, Scope
from driftq.groups.registry import LEASE_MS, IdempotencyRegistry, scope_of
from driftq.model.envelope import Message
from driftq.seam.runtime import Pending, Runtime, Timer, run

_RENEW_MS_MIN = 100

Handle = Callable[[Message], Coroutine[Any, None, bytes]]
"""Does the work of a message; the answer is kept as its result. It awaits `Pending`s and nothing else."""


class _Lease:
    """One delivery that is worked on."""

    def __init__(self, place: Place, scope: Scope | None) -> None:
        self.place = place
        self.scope = scope
        self.timer: Timer | None = None
        self.lost = False


class Runner:
    """One stream of a group, with so many messages under way at one time."""

    def __init__(
        self,
        broker: Broker,
        registry: IdempotencyRegistry,
        runtime: Runtime,
        handle: Handle,
        *,
        topic: str,
        group: str,
        owner: str,
        lease_ms: int = LEASE_MS,
        concurrency: int = 1,
    ) -> None:
        self._broker = broker
        self._registry = registry
        self._runtime = runtime
        self._handle = handle
        self._topic, self._group, self._owner = topic, group, owner
        self._lease_ms = lease_ms
        self._concurrency = concurrency
        self._under_way = 0
        self._stream = broker.attach(topic, group, owner, self, lease_ms=lease_ms, credit=concurrency)

    def close(self) -> None:
        """Take no more; what is under way is finished."""
        self._stream.detach()

    # What the broker asks of an outlet

    def ready(self) -> bool:
        """Is there a hand free?"""
        return self._under_way < self._concurrency

    def deliver(self, delivery: Delivery) -> None:
        """Begin with a message."""
        self._under_way += 1
        run(self._work(delivery)).then(self._ended)

    def end(self) -> None:
        """Do nothing: what is under way is finished."""

    def _ended(self, _: Pending[None]) -> None:
        # What could not be settled comes again when its lease ends.
        self._under_way -= 1
        self._stream.wake()

    # The work

    async def _work(self, delivery: Delivery) -> None:
        message = delivery.message
        keyed = message.envelope is not None and bool(message.envelope.idempotency_key)
        scope = scope_of(self._topic, self._group, message) if keyed else None
        lease = _Lease(Place(self._topic, self._group, delivery.partition, delivery.offset), scope)
        if scope is not None and self._registry.begin_key(scope, self._owner, self._lease_ms).already_done:
            await self._broker.ack(lease.place, self._owner)
            return
        self._renew_later(lease)
        try:
            result = await self._handle(message)
        except Exception as error:  # noqa: BLE001  # whatever the work raises is the reason why it failed
            await self._fail(lease, str(error) or type(error).__name__)
        else:
            await self._succeed(lease, result)

    async def _succeed(self, lease: _Lease, result: bytes) -> None:
        if not self._stop(lease):
            return
        if lease.scope is not None:
            try:
                await self._registry.commit_key(lease.scope, self._owner, result)
            except (LeaseLostError, LeaseHeldError) as lost:
                await self._broker.nack(lease.place, self._owner, _reason(lost))
                return
        await self._broker.ack(lease.place, self._owner)

    async def _fail(self, lease: _Lease, why: str) -> None:
        if not self._stop(lease):
            return
        if lease.scope is not None:
            await self._registry.fail_key(lease.scope, self._owner, why)
        await self._broker.nack(lease.place, self._owner, why)

    # The lease

    def _renew_later(self, lease: _Lease) -> None:
        delay_ms = max(self._lease_ms // 3, _RENEW_MS_MIN)
        lease.timer = self._runtime.later(delay_ms, lambda: self._renew(lease))

    def _renew(self, lease: _Lease) -> None:
        try:
            if lease.scope is None:
                self._broker.extend(lease.place, self._owner, self._lease_ms)
            else:
                self._registry.renew_key(lease.scope, self._owner, self._lease_ms)
        except DriftQError as error:
            lease.lost = True
            run(self._give_up(lease, error))
        finally:
            if not lease.lost:
                self._renew_later(lease)

    async def _give_up(self, lease: _Lease, error: DriftQError) -> None:
        await self._broker.nack(lease.place, self._owner, _reason(error))

    @staticmethod
    def _stop(lease: _Lease) -> bool:
        """The work has ended: is it still ours?"""
        if lease.timer is not None:
            lease.timer.cancel()
        return not lease.lost


def _reason(lost: DriftQError) -> str:
    return f"idem_lease_lost: {lost.message}"
