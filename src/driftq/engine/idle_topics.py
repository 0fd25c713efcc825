"""Idle topics give their reserved seqs back, so that a power loss in quiet times leaves no hole.

    reserved (`watch`) → due, written to meanwhile → due again, 60 s after that write
                       → due, idle → an empty reservation is logged and synced; the topic leaves the heap

Invariants
- A topic is in the heap once, from its reservation until it has given it back. A topic that is not in the heap costs
  nothing, and one that is in the heap costs nothing before it is due.
- A topic gives its reservation back only when all its records are on stable storage and no write is in flight. From
  that moment no write may rely on it (`Reservations.reserve`), so the next `disk` write waits for one sync.
"""

from collections.abc import Callable
from heapq import heappop, heappush

from driftq.engine.state.topic import Topic
from driftq.model.limits import RESERVE_MIN
from driftq.model.topic_config import Durability

IDLE_MS = 60_000
"""How long a topic keeps its reservation after its last write."""
_AGAIN_MS = 1000
"""When to check again a topic that is idle but has an unsynced record, or whose shard is busy."""
_PER_LOOK = 1024
"""How many reservations one call gives back at most: each is a frame in a queue of 4096."""


class IdleTopics:
    """The topics that have seqs reserved, in the order in which they are to be checked."""

    def __init__(self, may_give_back: Callable[[Topic], bool], reserve: Callable[[Topic, int], None]) -> None:
        self._may_give_back = may_give_back
        self._reserve = reserve
        self._due: list[tuple[int, int, Topic]] = []
        self._watched: set[int] = set()

    def __len__(self) -> int:
        return len(self._due)

    def watch(self, topic: Topic, now: int) -> None:
        """Check a topic that has seqs reserved when it may have become idle."""
        if topic.id not in self._watched:
            self._watched.add(topic.id)
            self._look_at(topic, now + IDLE_MS)

    def look(self, now: int) -> None:
        """Give back the reservations of topics that are idle by now."""
        due = self._due
        for _ in range(_PER_LOOK):
            if not due or due[0][0] > now:
                return
            self._look(heappop(due)[2], now)

    def _look(self, topic: Topic, now: int) -> None:
        if topic.gone or topic.durability is not Durability.DISK or topic.in_flight.reserve_asked <= topic.head:
            self._watched.discard(topic.id)
        elif now - (written := topic.timeline.moment(topic.last_ts)) < IDLE_MS:
            self._look_at(topic, written + IDLE_MS)
        elif not self._may_give_back(topic):
            self._look_at(topic, now + _AGAIN_MS)
        else:
            self._watched.discard(topic.id)
            topic.in_flight.reserve_window = RESERVE_MIN
            self._reserve(topic, topic.head)

    def _look_at(self, topic: Topic, due: int) -> None:
        heappush(self._due, (due, topic.id, topic))
