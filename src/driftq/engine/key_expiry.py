"""Removes idempotency keys from memory, and so from checkpoints, when their window is over, even without a write.

    first key of a topic (`watch`) → due when its oldest key is out of its window → expired → due again, or removed

Invariants
- A topic is in the heap once, from its first key until it has none. A topic that is not in the heap costs nothing, and
  one that is in the heap costs nothing before it is due.
- One call removes at most `_PER_LOOK` keys; the next call continues.
- This module never decides whether a key is known: `IdempotencyKeys.find` compares the time itself.
"""

from heapq import heappop, heappush

from driftq.engine.state.catalog import Catalog
from driftq.engine.state.topic import Topic

_PER_LOOK = 20_000
"""How many keys one call removes at most; that takes about 10 ms."""


class KeyWindows:
    """The topics that have idempotency keys, ordered by when the oldest key of each is out of its window."""

    def __init__(self, catalog: Catalog) -> None:
        self._due: list[tuple[int, int, Topic]] = []
        self._watched: set[int] = set()
        catalog.watch_keys(self.watch)

    def __len__(self) -> int:
        return len(self._due)

    def watch(self, topic: Topic) -> None:
        """Check a topic that has keys when its oldest key is out of its window."""
        if topic.id not in self._watched and len(topic.keys):
            self._watched.add(topic.id)
            self._look_at(topic)

    def look(self, now: int) -> None:
        """Remove keys that are out of their window by now."""
        due, left = self._due, _PER_LOOK
        while due and due[0][0] <= now and left > 0:
            topic = heappop(due)[2]
            before = len(topic.keys)
            topic.keys.expire(topic.kept_from(now, topic.config.idempotency_window_ms), left)
            left -= max(1, before - len(topic.keys))
            topic.changed = topic.changed or len(topic.keys) < before
            if topic.gone or not len(topic.keys):
                self._watched.discard(topic.id)
            else:
                self._look_at(topic)

    def _look_at(self, topic: Topic) -> None:
        due = topic.timeline.moment(topic.keys.oldest_ts) + topic.config.idempotency_window_ms + 1
        heappush(self._due, (due, topic.id, topic))
