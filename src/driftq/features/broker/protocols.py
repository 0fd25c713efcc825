"""Interfaces that the broker uses: a connection to write to, the idempotency registry, the router hook.

The broker calls `Registry` for every durable outcome when its frame or record is applied, live and in replay alike, so
that the registry can be rebuilt. The registry captures any other state of its own.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from driftq.model.message import Message, RoutingDecision
from driftq.system.runtime import Pending


class OutgoingMessage(NamedTuple):
    """One message of a stream."""

    partition: int
    offset: int
    attempts: int
    last_error: str
    message: Message


class Produced(NamedTuple):
    """The answer to a produce.

    For a duplicate, the place is that of the stored message, or -1 if that message is gone; its time is not known.
    """

    topic: str
    """The topic in which the message was stored."""
    partition: int = -1
    offset: int = -1
    ts: int = 0
    duplicate: bool = False


Listener = Callable[[Produced, Message], None]
"""Called for every committed message; at a start, for messages after the checkpoint that have an envelope."""


Ender = Callable[[str, int, str, int], None]
"""Called for every message that is done after a number of deliveries other than one: topic, offset, group, deliveries.
At a start, these calls come before those of `Listener`.
"""


class DeliveryKey(NamedTuple):
    """The group and the message that a call is about."""

    topic: str
    group: str
    partition: int
    offset: int


class BrokerCounters:
    """Counts since the server started.

    They are refused produces, dead letters, redeliveries, and messages that were skipped because their idempotency key
    was committed.
    """

    def __init__(self) -> None:
        self.rejected: dict[str, int] = {}
        """Produces that backpressure refused, by limit."""
        self.dead_letters: dict[tuple[str, str], int] = {}
        """Dead letters, by source topic and reason."""
        self.redeliveries = 0
        self.skips = 0
        """How many messages were skipped because their key was committed."""


class ConsumerOutlet(Protocol):
    """A connection that messages are written to."""

    def ready(self) -> bool:
        """Whether the outlet accepts another line now. After False, it calls `ConsumerStream.wake` once it does."""
        ...

    def deliver(self, deliveries: Sequence[OutgoingMessage]) -> None:
        """Write messages to the connection."""
        ...

    def end(self) -> None:
        """End the connection after the lines written so far, because the stream has left its group."""
        ...


class KeyOwner(NamedTuple):
    """A key of a consumer: tenant, topic, group and key."""

    tenant: str
    topic: str
    group: str
    key: str


class KeyStatus(NamedTuple):
    """The status of a key for a group."""

    committed: bool = False
    holder: str | None = None
    """The owner of the valid lease, or None."""


class Registry(Protocol):
    """The idempotency registry (http-v1 §13). Times of stored messages are stamps; all others are engine time in ms."""

    def begin_produce(self, tenant: str, topic: str, key: str) -> int | None:
        """Reserve a key for a produce. Return the offset of its message if it is committed already, else None.
        Raise InvalidRequestError while it is pending.
        """
        ...

    def end_produce(self, tenant: str, topic: str, key: str, ts: int | None, offset: int = -1) -> None:
        """End the produce that reserved a key: stored at `ts` and `offset`, or failed if `ts` is None."""
        ...

    def stored(self, tenant: str, topic: str, key: str, ts: int, offset: int) -> None:
        """Record that a message with this key exists: found after the checkpoint, or restored by a redrive."""
        ...

    def standing(self, scope: KeyOwner, stored_ts: int) -> KeyStatus:
        """Return the status of a key for a message that was stored at `stored_ts`."""
        ...

    def delivered(self, scope: KeyOwner, owner: str, lease_until: int, partition: int, offset: int) -> None:
        """Record that a message with this key was delivered to an owner, or that its lease was extended."""
        ...

    def released(self, scope: KeyOwner, owner: str, offset: int) -> None:
        """Release the key of a delivery that its owner gave back without working on it."""
        ...

    def settling(self, scope: KeyOwner) -> None:
        """Record that an ack or nack is being logged: no other owner gets the key meanwhile. `settled` follows."""
        ...

    def settled(self, scope: KeyOwner) -> None:
        """Record that the ack or nack was logged, or could not be."""
        ...

    def voided(self, topic: str, group: str) -> None:
        """End all leases of a group, because its position was moved."""
        ...

    def sweep(self) -> None:
        """Drop some of the entries whose window is over; called at every tick."""
        ...

    def committed(self, scope: KeyOwner, ts: int) -> None:
        """Record that a message with this key was acked."""
        ...

    def failed(self, scope: KeyOwner, reason: str, ts: int) -> None:
        """Record that a message with this key was nacked."""
        ...


class Hook(Protocol):
    """Decides where a message goes before it is stored (http-v1 §14)."""

    def route(self, topic: str, message: Message) -> Pending[RoutingDecision | None] | None:
        """Return a routing decision. None, at once or later, leaves the decision to the producer.

        The answer fails only if the server is configured to refuse produces when the hook fails.
        """
        ...


class NoRegistry:
    """A registry that stores nothing: keys have no effect."""

    def begin_produce(self, tenant: str, topic: str, key: str) -> int | None:
        """Return None: no key is ever committed."""
        return None

    def end_produce(self, tenant: str, topic: str, key: str, ts: int | None, offset: int = -1) -> None:
        """Do nothing: no key is stored."""

    def stored(self, tenant: str, topic: str, key: str, ts: int, offset: int) -> None:
        """Do nothing: no key is stored."""

    def standing(self, scope: KeyOwner, stored_ts: int) -> KeyStatus:
        """Return the status of an unused key."""
        return KeyStatus()

    def delivered(self, scope: KeyOwner, owner: str, lease_until: int, partition: int, offset: int) -> None:
        """Do nothing: no lease is stored."""

    def released(self, scope: KeyOwner, owner: str, offset: int) -> None:
        """Do nothing: no lease is stored."""

    def settling(self, scope: KeyOwner) -> None:
        """Do nothing: no outcome is stored."""

    def settled(self, scope: KeyOwner) -> None:
        """Do nothing: no outcome is stored."""

    def voided(self, topic: str, group: str) -> None:
        """Do nothing: no lease is stored."""

    def sweep(self) -> None:
        """Do nothing: there is nothing to drop."""

    def committed(self, scope: KeyOwner, ts: int) -> None:
        """Do nothing: no outcome is stored."""

    def failed(self, scope: KeyOwner, reason: str, ts: int) -> None:
        """Do nothing: no outcome is stored."""


class NoHook:
    """A hook that leaves every decision to the producer."""

    def route(self, topic: str, message: Message) -> Pending[RoutingDecision | None] | None:
        """Return None: the producer decides."""
        return None
