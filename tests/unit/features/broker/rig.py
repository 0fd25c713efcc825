"""A broker on an engine on a simulated disk, and consumers that write down what they get."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from driftq.config import Settings
from driftq.engine.state.durable_feature import DurableState
from driftq.features.broker.broker import Broker
from driftq.features.broker.idempotency.registry import IdempotencyRegistry
from driftq.features.broker.protocols import DeliveryKey, Hook, OutgoingMessage, Produced, Registry
from driftq.features.broker.state.group import ConsumerStream
from driftq.model.broker_settings import BrokerSettings
from driftq.model.message import Envelope, Message, RetryPolicy
from driftq.system.disk import Disk
from driftq.system.runtime import Pending
from driftq.testing import CrashMode, EngineRig, ManualClock, SimDisk
from driftq.testing.engine_rig import SMALL

T = TypeVar("T")


class Consumer:
    """One stream, and what came over it."""

    def __init__(
        self, rig: "BrokerRig", topic: str, group: str, owner: str, lease_ms: int, credit: int | None, name: str
    ) -> None:
        self.rig = rig
        self.topic, self.group, self.owner = topic, group, owner
        self.got: list[OutgoingMessage] = []
        self.open = True
        self.ended = False
        self.stream: ConsumerStream = rig.broker.attach(
            topic, group, owner, self, lease_ms=lease_ms, credit=credit, name=name
        )

    def ready(self) -> bool:
        return self.open

    def deliver(self, deliveries: Sequence[OutgoingMessage]) -> None:
        self.got += deliveries

    def end(self) -> None:
        self.ended = True

    def take(self) -> list[OutgoingMessage]:
        """What came since the last time."""
        self.rig.run_all()
        got, self.got = self.got, []
        return got

    def offsets(self) -> list[int]:
        return [delivery.offset for delivery in self.take()]

    def one(self) -> OutgoingMessage:
        (delivery,) = self.take()
        return delivery

    def place(self, offset: int, partition: int = 0) -> DeliveryKey:
        return DeliveryKey(self.topic, self.group, partition, offset)

    def ack(self, offset: int, partition: int = 0) -> None:
        self.rig.run(self.rig.broker.ack(self.place(offset, partition), self.owner))

    def nack(self, offset: int, reason: str = "", partition: int = 0) -> None:
        self.rig.run(self.rig.broker.nack(self.place(offset, partition), self.owner, reason))

    def close(self) -> None:
        self.stream.detach()


class BrokerRig:
    """The broker, with the short words that tests want."""

    def __init__(
        self,
        *,
        settings: Settings = SMALL,
        disk: SimDisk | None = None,
        clock: ManualClock | None = None,
        seed: int | None = None,
        wal_shards: int = 1,
        wrap: Callable[[Disk], Disk] = lambda disk: disk,
        registry: Registry | None = None,
        hook: Hook | None = None,
        **limits: Any,
    ) -> None:
        self._limits = BrokerSettings(**limits)
        self._registry, self._hook = registry, hook
        self.engine_rig = EngineRig(
            settings, disk=disk, clock=clock, seed=seed, features=self._features, wrap=wrap, wal_shards=wal_shards
        )
        self._open()

    def _features(self) -> tuple[DurableState, ...]:
        self.broker = Broker(self._limits, self._registry, self._hook)
        return (self.broker,)

    def _open(self) -> None:
        self.broker.open(self.engine_rig.engine, self.engine_rig.runtime)

    def run(self, pending: Pending[T]) -> T:
        return self.engine_rig.run(pending)

    def run_all(self) -> None:
        self.engine_rig.runtime.run_until_idle()

    def advance(self, ms: int) -> None:
        self.engine_rig.runtime.advance(ms)

    def create(self, topic: str = "t", partitions: int = 1) -> int:
        return self.run(self.broker.create_topic(topic, partitions))

    def produce(self, *values: str, topic: str = "t", key: str = "", **envelope: Any) -> list[Produced]:
        return [self.run(self.broker.produce(topic, message(value, key=key, **envelope))) for value in values]

    def consume(
        self,
        topic: str = "t",
        group: str = "g",
        owner: str = "a",
        *,
        lease_ms: int = 0,
        credit: int | None = None,
        name: str = "",
    ) -> Consumer:
        return Consumer(self, topic, group, owner, lease_ms, credit, name)

    def restart(self) -> None:
        self.broker.close()
        self.engine_rig.restart()
        self._open()

    def crash(self, mode: CrashMode = CrashMode.DROP, seed: int = 0) -> None:
        self.engine_rig.crash(mode, seed)
        self._open()

    def lag(self, topic: str = "t", group: str = "g", partition: int = 0) -> int:
        (found,) = self.broker.groups(topic, group)
        return found.partitions[partition].lag


class RegisteredRig(BrokerRig):
    """A broker with its idempotency registry, as a server has them."""

    def _features(self) -> tuple[DurableState, ...]:
        self.registry = IdempotencyRegistry(self._limits)
        self.broker = Broker(self._limits, self.registry, self._hook)
        return self.registry, self.broker

    def _open(self) -> None:
        self.registry.bind(self.engine_rig.engine, self.broker)
        super()._open()


def message(value: str, *, key: str = "", retry: tuple[int, int, int] | None = None, **envelope: Any) -> Message:
    policy = None if retry is None else RetryPolicy(*retry)
    made = Envelope(retry_policy=policy, **envelope)
    return Message(value, key, None if made == Envelope() else made)
