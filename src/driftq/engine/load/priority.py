"""Which ready item is served next (http-v0 §15). Pure: it neither knows the kind of items nor reads a clock.

There are five bands by effective priority. Bands are served by deficit round robin, the items of one band in order of
arrival. Each round gives every band credit in proportion to its weight. The cost of a served item is taken from its
band's credit, and a band in debt waits for later rounds. No weight is zero, so no band starves. The priority of a
waiting item rises by a tenth of a point per millisecond.
"""

from collections import deque
from typing import Generic, TypeVar

from driftq.model.limits import PRIORITY_MAX
from driftq.model.topic_config import TopicConfig

T = TypeVar("T")

_FLOORS = (750, 500, 250, 0)
_WEIGHTS = (8, 4, 2, 1, 1)
CREDIT = 64 << 10
"""Credit that a weight of one adds per round, in bytes."""

_MS_PER_POINT = 10
_AGE_POINTS_MAX = 1000
_AGE_STEP_MS = 50


def band_of(priority: int) -> int:
    """Return the number of the band that a priority belongs to; band 0 is served most."""
    for band, floor in enumerate(_FLOORS):
        if priority >= floor:
            return band
    return len(_FLOORS)


class Bands(Generic[T]):
    """Items that wait to be served, in one queue per band."""

    def __init__(self) -> None:
        self._queues: list[deque[tuple[T, int, int]]] = [deque() for _ in _WEIGHTS]
        self._credit = [0] * len(_WEIGHTS)
        self._at = len(_WEIGHTS) - 1
        self._size = 0
        self._aged_ms = 0

    def __len__(self) -> int:
        return self._size

    def add(self, item: T, priority: int, now_ms: int) -> None:
        """Queue an item with its priority, waiting since `now_ms`."""
        if not self._size:
            self._aged_ms = now_ms
        self._size += 1
        self._queues[band_of(priority)].append((item, priority, now_ms))

    def take(self, now_ms: int) -> T:
        """Remove and return the next item; there must be one. Call `spend` with its cost before the next `take`."""
        assert self._size
        if now_ms - self._aged_ms >= _AGE_STEP_MS:
            self._aged_ms = now_ms
            self._rise(now_ms)
        while not (self._queues[self._at] and self._credit[self._at] > 0):
            if not self._queues[self._at]:
                self._credit[self._at] = 0  # neither credit nor debt is kept by an empty band
            self._at = (self._at + 1) % len(_WEIGHTS)
            self._credit[self._at] += _WEIGHTS[self._at] * CREDIT
        self._size -= 1
        return self._queues[self._at].popleft()[0]

    def spend(self, cost: int) -> None:
        """Charge the cost in bytes of the item that `take` returned last to its band."""
        self._credit[self._at] -= max(cost, 1)

    def _rise(self, now_ms: int) -> None:
        for band in range(1, len(_WEIGHTS)):
            waiting, self._queues[band] = self._queues[band], deque()
            for entry in waiting:
                age = min((now_ms - entry[2]) // _MS_PER_POINT, _AGE_POINTS_MAX)
                self._queues[band_of(entry[1] + age)].append(entry)


RECENCY_MAX = 500
HALF_LIFE_MS = 30_000
RECENCY_END_MS = 300_000
AGE_PER_MS = 0.1
AGE_MAX = 1000


def effective_priority(config: TopicConfig, consumed_at: int | None, now: int, waited_ms: int = 0) -> int:
    """Return manual priority, recency and age added up and rounded. `consumed_at` is the last read, if any."""
    manual = max(-PRIORITY_MAX, min(PRIORITY_MAX, config.priority or 0))
    age = min(AGE_MAX, max(0, waited_ms) * AGE_PER_MS)
    return round(manual + _recency(config, consumed_at, now) + age)


def _recency(config: TopicConfig, consumed_at: int | None, now: int) -> float:
    if consumed_at is None or not config.auto_priority:
        return 0.0
    idle_ms = max(0, now - consumed_at)
    return 0.0 if idle_ms >= RECENCY_END_MS else RECENCY_MAX * 2.0 ** (-idle_ms / HALF_LIFE_MS)
