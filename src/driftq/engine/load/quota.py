"""How many bytes the server may hold (http-v0 §16): live payload of all topics, and what is on its way in.

What has expired does not count, though nobody may have looked at its topic since: before anything is refused, every
topic that may hold expired records is looked at. `_due` is the next moment at which one can, so that a full server
that refuses many writes does not look again for each of them.
"""

from driftq.engine.engine_time import EngineTime
from driftq.engine.state.catalog import Catalog
from driftq.errors import ThrottledError

_RETRY_MS = 1000


class Quota:
    """The one cap on bytes; 0 is none."""

    def __init__(self, catalog: Catalog, time: EngineTime, most: int) -> None:
        self._catalog = catalog
        self._usage = catalog.usage
        self._time = time
        self._most = most
        self.limited = most > 0
        self._due = 0
        self._configs_seen = -1
        self.reserved = 0
        """Bytes that count and are in no topic yet: who adds some here takes them away again."""

    def check(self, size: int) -> None:
        """Refuse so many bytes more than there is room for; exactly as many are taken. Raises ThrottledError."""
        if not self._most or self._fits(size):
            return
        self._expire()
        if not self._fits(size):
            raise ThrottledError(
                "the server holds as many bytes as it may",
                detail={"limit": "max_total_bytes", "max": self._most},
                retry_after_ms=_RETRY_MS,
            )

    def left(self, wanted: int) -> int | None:
        """How many bytes there is room for, if less than wanted; None when there is room for all."""
        if not self._most or self._fits(wanted):
            return None
        self._expire()
        return self._most - self._usage.payload - self.reserved

    def _fits(self, size: int) -> bool:
        return self._usage.payload + self.reserved + size <= self._most

    def _expire(self) -> None:
        now = self._time.now()
        if now < self._due and self._configs_seen == self._catalog.config_changes:
            return
        self._configs_seen = self._catalog.config_changes
        due = [now + _RETRY_MS]
        for topic in self._catalog.visible():
            ttl = topic.config.ttl_ms
            if ttl and not topic.late:
                topic.expire(now)
                oldest = topic.timeline.moment(topic.oldest_ts) if topic.count else now
                due.append(oldest + ttl + 1)
        self._due = min(due)
