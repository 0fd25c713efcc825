"""`Broker`: the broker API as one feature, for the server and its handlers."""

from typing import NamedTuple

from driftq.engine.engine import Engine
from driftq.engine.topic import Topic
from driftq.errors import NotReadyError
from driftq.groups.ports import Hook, NoHook, NoRegistry, Outlet, Registry
from driftq.model.broker import BrokerSettings
from driftq.model.envelope import Message
from driftq.seam.clock import Clock
from driftq.seam.runtime import Pending, Runtime


class Produced(NamedTuple):
    """The answer to a produce. Of a duplicate neither place nor time is known."""

    topic: str
    """Where it was stored."""
    partition: int = -1
    offset: int = -1
    ts: int = 0
    duplicate: bool = False


class Place(NamedTuple):
    """Which message of which group a call means."""

    topic: str
    group: str
    partition: int
    offset: int


class PartitionFigures(NamedTuple):
    """How a group stands in one partition."""

    partition: int
    floor: int
    last_acked: int
    done: int
    lag: int
    in_flight: int
    waiting: int
    owners: list[str]
    oldest_ms: int | None


class GroupFigures(NamedTuple):
    """How a group stands."""

    topic: str
    group: str
    streams: int
    partitions: list[PartitionFigures]


class Counters:
    """What has happened since the start."""

    def __init__(self) -> None:
        self.rejected: dict[str, int] = {}
        """Produces that backpressure refused, by limit."""
        self.dead_letters: dict[str, int] = {}
        """Dead letters, by source topic."""
        self.redeliveries = 0
        self.skips = 0
        """Messages that were done because their key was committed."""


class Moved(NamedTuple):
    """What a seek did to one partition."""

    partition: int
    floor_before: int
    floor_after: int


class Stream:
    """A consumer's connection in its group."""

    def wake(self) -> None:
        """Its outlet takes lines again."""
        raise NotReadyError("the broker is not there yet")

    def detach(self) -> None:
        """The connection is gone; what was handed to it stays leased."""
        raise NotReadyError("the broker is not there yet")


class Broker:
    """Topics, messages, groups and streams. Every refusal is a DriftQError whose message is the contract's text."""

    name = "groups"
    kinds = frozenset(range(64, 72))

    def __init__(self, settings: BrokerSettings, registry: Registry | None = None, hook: Hook | None = None) -> None:
        self.settings = settings
        self.registry: Registry = registry or NoRegistry()
        self.hook: Hook = hook or NoHook()
        self.counters = Counters()

    def open(self, engine: Engine, runtime: Runtime, clock: Clock) -> None:
        """Recovery is over."""

    def close(self) -> None:
        """Hand nothing out any more."""

    # Topics

    def create_topic(self, name: str, partitions: int = 1) -> Pending[int]:
        """Create a topic unless it is there; the answer is how many partitions it has. `partitions` is checked here."""
        raise NotReadyError("the broker is not there yet")

    def topics(self) -> list[str]:
        """Every topic, by the bytes of its name."""
        return []

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has. Raises InvalidRequestError."""
        raise NotReadyError("the broker is not there yet")

    def log_name(self, topic: str) -> str:
        """What a topic is called through the other API."""
        raise NotReadyError("the broker is not there yet")

    # Messages

    def produce(self, topic: str, message: Message, *, deadline_ms: int | None = None) -> Pending[Produced]:
        """Store a message (http-v1 §3.5, steps 2 to 10); `deadline_ms` is its envelope's deadline as a moment."""
        raise NotReadyError("the broker is not there yet")

    def attach(
        self, topic: str, group: str, owner: str, outlet: Outlet, *, lease_ms: int = 0, credit: int | None = None
    ) -> Stream:
        """Join a group: messages go to `outlet` from the next turn on. Raises InvalidRequestError."""
        raise NotReadyError("the broker is not there yet")

    def ack(self, place: Place, owner: str) -> Pending[None]:
        """A message is done (http-v1 §3.7, from check 6 on)."""
        raise NotReadyError("the broker is not there yet")

    def nack(self, place: Place, owner: str, reason: str = "") -> Pending[None]:
        """A message failed (http-v1 §3.8)."""
        raise NotReadyError("the broker is not there yet")

    def extend(self, place: Place, owner: str, lease_ms: int) -> int:
        """Give a delivery another deadline; the answer is that, as wall time (http-v1 §22)."""
        raise NotReadyError("the broker is not there yet")

    # Groups

    def groups(self, topic: str | None = None, group: str | None = None) -> list[GroupFigures]:
        """How groups stand, those of this topic and name if given."""
        return []

    def seek(
        self,
        topic: str,
        group: str,
        floors: dict[int, int],
        *,
        dry_run: bool = False,
        force: bool = False,
    ) -> Pending[list[Moved]]:
        """Put a group before the first message at or above an offset, per partition (http-v1 §22)."""
        raise NotReadyError("the broker is not there yet")

    # What the engine asks for

    def apply(self, kind: int, topic: Topic, ts: int, body: bytes) -> None:
        """One committed frame."""

    def capture(self) -> bytes:
        """All state."""
        return b""

    def restore(self, section: bytes) -> None:
        """And back."""

    def forget(self, topic: Topic) -> None:
        """Topics of the broker are never deleted."""
