"""One topic of a feed: the position in it, and what was announced to the reader."""

from typing import Protocol

from driftq.engine.state.topic import Topic
from driftq.features.watch.position import Options, ReadPosition
from driftq.features.watch.shared_reads import Lead
from driftq.system.runtime import Pending


class Subscription:
    """A topic that a feed follows, and how far the feed has read it."""

    __slots__ = (
        "_feed",
        "first",
        "late",
        "name",
        "options",
        "paced",
        "place",
        "target",
        "told",
        "topic",
        "unavailable",
    )

    def __init__(self, feed: "Follower", name: str, place: ReadPosition, options: Options, topic: Topic | None) -> None:
        self._feed = feed
        self.name = name
        self.place = place
        self.options = options
        self.topic = topic
        """The topic as it was last found: its last head is known even after it was deleted."""
        self.first = True
        """Whether nothing of the topic has been read yet."""
        self.told: tuple[int, int] | None = None
        """The epoch and cursor that `caught_up` was last sent for."""
        self.target = 0
        self.paced = False
        self.unavailable = False
        """Whether the outlet was informed that records cannot be read now."""
        self.late: Pending[None] | None = None
        """What only this topic waits for. After it has settled, it keeps the blocks of the next read in memory."""

    @property
    def is_late(self) -> bool:
        """Whether the topic has to wait for something that the other topics of the feed do not wait for."""
        return self.late is not None and not self.late.settled

    @property
    def alone(self) -> bool:
        """Whether the feed follows no other topic."""
        return len(self._feed) == 1

    def wake(self) -> None:
        """Mark the topic for a read, because it may have changed."""
        self._feed.mark(self)

    def lead(self) -> tuple[int, Lead | None]:
        """Read the topic now. Return the cost, and a `Lead` if other subscriptions can send the same events."""
        return self._feed.lead(self)

    def follow(self, lead: Lead) -> bool:
        """Send the events that another subscription sent, if this one is at the position where that one was."""
        return self._feed.follow(self, lead)


class Follower(Protocol):
    """The feed of a subscription, as the subscription uses it."""

    def __len__(self) -> int:
        """Return the number of followed topics."""
        ...

    def mark(self, subscription: Subscription) -> None:
        """Schedule a read of a topic."""
        ...

    def lead(self, subscription: Subscription) -> tuple[int, Lead | None]:
        """Read a topic in this step. Return the cost, and a `Lead` that others may reuse."""
        ...

    def follow(self, subscription: Subscription, lead: Lead) -> bool:
        """Adopt the position and send the bytes of `lead`. Return False if the state was different."""
        ...
