"""What the broker asks of others: a connection to write to, the idempotency registry, the router hook.

`Registry` is told of every durable outcome when the frame or record of it is applied, live and in replay alike, so it
can be rebuilt; whatever it keeps beyond that it captures itself.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from driftq.model.message import Message, RoutingDecision
from driftq.system.runtime import Pending


class OutgoingMessage(NamedTuple):
    """One line of a stream."""

    partition: int
    offset: int
    attempts: int
    last_error: str
    message: Message


class Produced(NamedTuple):
    """The answer to a produce. Of a duplicate neither place nor time is known."""

    topic: str
    """Where it was stored."""
    partition: int = -1
    offset: int = -1
    ts: int = 0
    duplicate: bool = False


Listener = Callable[[Produced, Message], None]
"""Hears of every message that is committed; at a start, of those behind the checkpoint that have an envelope."""


Ender = Callable[[str, int, str, int], None]
"""Hears of every message that is done after other than one delivery: topic, offset, group, deliveries. At a start it
hears of them before the messages are told."""


class DeliveryKey(NamedTuple):
    """Which message of which group a call means."""

    topic: str
    group: str
    partition: int
    offset: int


class BrokerCounters:
    """What has happened since the start."""

    def __init__(self) -> None:
        self.rejected: dict[str, int] = {}
        """Produces that backpressure refused, by limit."""
        self.dead_letters: dict[tuple[str, str], int] = {}
        """Dead letters, by source topic and reason."""
        self.redeliveries = 0
        self.skips = 0
        """Messages that were done because their key was committed."""


class ConsumerOutlet(Protocol):
    """A connection that messages are written to."""

    def ready(self) -> bool:
        """Does it take another line now? One that says no calls `Stream.wake` when it does again."""
        ...

    def deliver(self, deliveries: Sequence[OutgoingMessage]) -> None:
        """Hand lines to the socket."""
        ...

    def end(self) -> None:
        """End after the lines that were handed over: the stream has left its group."""
        ...


class KeyOwner(NamedTuple):
    """Whose key it is, on the consuming side."""

    tenant: str
    topic: str
    group: str
    key: str


class KeyStatus(NamedTuple):
    """How a key stands for a group now."""

    committed: bool = False
    holder: str | None = None
    """The owner of the live lease, if there is one."""


class Registry(Protocol):
    """The idempotency registry (http-v1 §13). Times are wall milliseconds of the engine."""

    def begin_produce(self, tenant: str, topic: str, key: str) -> bool:
        """Take a key for a produce. True: it is committed already. Raises InvalidRequestError while it is pending."""
        ...

    def end_produce(self, tenant: str, topic: str, key: str, ts: int | None, offset: int = -1) -> None:
        """The produce that took it was stored there and then, or failed."""
        ...

    def stored(self, tenant: str, topic: str, key: str, ts: int, offset: int) -> None:
        """A message with this key is there: recovery found it behind the checkpoint, or a redrive brought it back."""
        ...

    def standing(self, scope: KeyOwner, stored_ts: int) -> KeyStatus:
        """How a key stands for a message that was stored then."""
        ...

    def delivered(self, scope: KeyOwner, owner: str, lease_until: int, partition: int, offset: int) -> None:
        """A message with this key was handed to an owner, or its lease was extended."""
        ...

    def released(self, scope: KeyOwner, owner: str, offset: int) -> None:
        """An owner gave this delivery back without having worked on it."""
        ...

    def settling(self, scope: KeyOwner) -> None:
        """An ack or nack of it is being logged: nobody else gets the key meanwhile. `settled` follows."""
        ...

    def settled(self, scope: KeyOwner) -> None:
        """It is logged, or could not be."""
        ...

    def voided(self, topic: str, group: str) -> None:
        """The leases of a group are void: it was moved."""
        ...

    def sweep(self) -> None:
        """Forget what is out of its window, a little at a time; called at every tick."""
        ...

    def committed(self, scope: KeyOwner, ts: int) -> None:
        """It was acked."""
        ...

    def failed(self, scope: KeyOwner, reason: str, ts: int) -> None:
        """It was nacked."""
        ...


class Hook(Protocol):
    """Decides where a message goes before it is stored (http-v1 §14)."""

    def route(self, topic: str, message: Message) -> Pending[RoutingDecision | None] | None:
        """None at once, or later, leaves all to the producer. Fails only where a failing hook is to refuse produces."""
        ...


class NoRegistry:
    """No key has any meaning."""

    def begin_produce(self, tenant: str, topic: str, key: str) -> bool:
        """Every produce is the first."""
        return False

    def end_produce(self, tenant: str, topic: str, key: str, ts: int | None, offset: int = -1) -> None:
        """Nothing is kept."""

    def stored(self, tenant: str, topic: str, key: str, ts: int, offset: int) -> None:
        """Nothing is kept."""

    def standing(self, scope: KeyOwner, stored_ts: int) -> KeyStatus:
        """Free."""
        return KeyStatus()

    def delivered(self, scope: KeyOwner, owner: str, lease_until: int, partition: int, offset: int) -> None:
        """Nothing is kept."""

    def released(self, scope: KeyOwner, owner: str, offset: int) -> None:
        """Nothing is kept."""

    def settling(self, scope: KeyOwner) -> None:
        """Nothing is kept."""

    def settled(self, scope: KeyOwner) -> None:
        """Nothing is kept."""

    def voided(self, topic: str, group: str) -> None:
        """Nothing is kept."""

    def sweep(self) -> None:
        """Nothing is kept."""

    def committed(self, scope: KeyOwner, ts: int) -> None:
        """Nothing is kept."""

    def failed(self, scope: KeyOwner, reason: str, ts: int) -> None:
        """Nothing is kept."""


class NoHook:
    """Leaves all to the producer."""

    def route(self, topic: str, message: Message) -> Pending[RoutingDecision | None] | None:
        """Nothing to say."""
        return None
