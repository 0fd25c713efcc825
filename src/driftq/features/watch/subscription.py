"""One topic of a feed: the position in it, and what was announced to the reader."""

from typing import Protocol

from driftq.engine.state.topic import Topic
from driftq.features.watch.position import Options, ReadPosition
from driftq.features.watch.shared_reads import Lead
from driftq.system.runtime import Pending


class Subscription:
    """A topic that a feed follows, and how far it has read it."""

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
        """The topic as it was last found: it knows its last head even when it is gone."""
        self.first = True
        """Whether nothing of the topic has been read yet."""
        self.told: tuple[int, int] | None = None
        """The epoch and cursor that `caught_up` was last sent for."""
        self.target = 0
        self.paced = False
        self.unavailable = False
        """Whether its outlet knows that records cannot be read now."""
        self.late: Pending[None] | None = None
        """What only this topic waits for; when it has settled, what holds the blocks of the next read."""

    @property
    def is_late(self) -> bool:
        """Whether it cannot be read before something has settled that the rest of its feed does not wait for."""
        return self.late is not None and not self.late.settled

    @property
    def alone(self) -> bool:
        """Does its feed follow nothing else?"""
        return len(self._feed) == 1

    def wake(self) -> None:
        """Something may have happened to the topic."""
        self._feed.mark(self)

    def lead(self) -> tuple[int, Lead | None]:
        """Look at the topic now; other subscriptions may follow with the same events."""
        return self._feed.lead(self)

    def follow(self, lead: Lead) -> bool:
        """Send the events that another subscription sent, if this one is at the position where that one was."""
        return self._feed.follow(self, lead)


class Follower(Protocol):
    """The feed of a subscription."""

    def __len__(self) -> int:
        """Return how many topics it follows."""
        ...

    def mark(self, subscription: Subscription) -> None:
        """Look at a topic, by and by."""
        ...

    def lead(self, subscription: Subscription) -> tuple[int, Lead | None]:
        """Look at a topic in this step."""
        ...

    def follow(self, subscription: Subscription, lead: Lead) -> bool:
        """Go where another one went."""
        ...
