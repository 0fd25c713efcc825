"""One topic of a feed: where the feed stands in it, and what the reader was told of it."""

from typing import Protocol

from driftq.engine.state.topic import Topic
from driftq.features.watch.position import Options, ReadPosition
from driftq.features.watch.shared_reads import Lead
from driftq.system.runtime import Pending


class Subscription:
    """One topic of a feed."""

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
        """Is nothing read yet?"""
        self.told: tuple[int, int] | None = None
        """The epoch and cursor that `caught_up` was last said for."""
        self.target = 0
        self.paced = False
        self.unavailable = False
        """Has its outlet been told that records cannot be read now?"""
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
        """The same, and its chorus waits for what it is told."""
        return self._feed.lead(self)

    def follow(self, lead: Lead) -> bool:
        """Be told what another one was told, if this one stands where that one stood."""
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
        """Look at a topic now."""
        ...

    def follow(self, subscription: Subscription, lead: Lead) -> bool:
        """Go where another one went."""
        ...
