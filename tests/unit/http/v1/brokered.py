"""A server whose broker writes down what it is asked, for tests of the wire alone."""

from typing import Any

from msgspec import json

from driftq.errors import InvalidRequestError
from driftq.features.broker.broker import Broker
from driftq.features.broker.protocols import ConsumerOutlet, DeliveryKey, Produced
from driftq.features.broker.state.group import ConsumerStream
from driftq.http.app import App
from driftq.http.reply import Reply
from driftq.model.broker_settings import BrokerSettings
from driftq.model.message import Message
from driftq.system.runtime import Pending
from driftq.testing import ServerRig


def done(value: Any = None) -> Pending[Any]:
    pending: Pending[Any] = Pending()
    pending.resolve(value)
    return pending


class KeptStream(ConsumerStream):
    """Counts what its owner says."""

    def __init__(self) -> None:
        self.woken = 0
        self.gone = False

    def wake(self) -> None:
        self.woken += 1

    def detach(self) -> None:
        self.gone = True


class NotingBroker(Broker):
    """Does nothing, and remembers what it should have done."""

    def __init__(self, settings: BrokerSettings) -> None:
        super().__init__(settings)
        self.names = {"t"}
        self.created: list[tuple[str, int]] = []
        self.produced: list[tuple[str, Message, int | None]] = []
        self.settled: list[tuple[Any, ...]] = []
        self.attached: list[tuple[Any, ...]] = []
        self.outlets: list[ConsumerOutlet] = []
        self.streams: list[KeptStream] = []

    def close(self) -> None:
        """It was never opened."""

    def topics(self) -> list[str]:
        return sorted(self.names)

    def partitions(self, topic: str) -> int:
        if topic not in self.names:
            raise InvalidRequestError("topic does not exist")
        return 3

    def create_topic(self, name: str, partitions: int = 1) -> Pending[int]:
        self.created.append((name, partitions))
        return done(partitions)

    def produce(self, topic: str, message: Message, *, deadline_ms: int | None = None) -> Pending[Produced]:
        self.produced.append((topic, message, deadline_ms))
        return done(Produced(topic, 0, 0, 0))

    def attach(
        self,
        topic: str,
        group: str,
        owner: str,
        outlet: ConsumerOutlet,
        *,
        lease_ms: int = 0,
        credit: int | None = None,
        name: str = "",
    ) -> ConsumerStream:
        self.attached.append((topic, group, owner, lease_ms, credit))
        self.outlets.append(outlet)
        self.streams.append(KeptStream())
        return self.streams[-1]

    def ack(self, place: DeliveryKey, owner: str) -> Pending[None]:
        self.settled.append(("ack", *place, owner))
        return done()

    def nack(
        self,
        place: DeliveryKey,
        owner: str,
        reason: str = "",
        *,
        delay_ms: int | None = None,
        dead_letter: bool = False,
    ) -> Pending[None]:
        self.settled.append(("nack", *place, owner, reason))
        return done()

    def extend(self, place: DeliveryKey, owner: str, lease_ms: int) -> int:
        self.settled.append(("extend", *place, owner, lease_ms))
        return 5000


class BrokerRig(ServerRig):
    """A server with such a broker."""

    def __init__(self, *, settings: BrokerSettings | None = None, keys: str = "", **changes: Any) -> None:
        settings = settings or BrokerSettings()
        super().__init__(keys=keys, broker=settings, **changes)
        self.broker = NotingBroker(settings)
        self.server.broker = self.broker
        self.app = App(self.server, self._keys)

    def post(self, path: str, body: Any) -> Reply:
        """One call; `body` is JSON unless it is bytes."""
        return self.reply("POST", path, raw=body if isinstance(body, bytes) else json.encode(body))

    def message(self, reply: Reply, status: int = 400) -> str:
        """What a refusal says."""
        body = json.decode(reply.body)
        assert reply.status == status, body
        return str(body["message"])
