"""The limit on bytes that the server holds (http-v0 §16): live payload of all topics, and payload that is being
written.

Expired records do not count, even if their topic has not removed them yet: before a write is refused, every topic that
may hold expired records removes them. `_due` is the next moment at which a topic can have new ones, so a full server
that refuses many writes does not search again for each of them.
"""

from driftq.engine.engine_time import EngineTime
from driftq.engine.state.catalog import Catalog
from driftq.errors import ThrottledError

_RETRY_MS = 1000


class Quota:
    """The server-wide limit on payload bytes; 0 means no limit."""

    def __init__(self, catalog: Catalog, time: EngineTime, most: int) -> None:
        self._catalog = catalog
        self._usage = catalog.usage
        self._time = time
        self._most = most
        self.limited = most > 0
        self._due = 0
        self._configs_seen = -1
        self.reserved = 0
        """Bytes that count although no topic holds them yet. Code that adds bytes here must also subtract them again.
        """

    def check(self, size: int) -> None:
        """Raise ThrottledError if `size` more bytes would exceed the limit; reaching it exactly is allowed."""
        if not self._most or self._fits(size):
            return
        self._expire()
        if not self._fits(size):
            raise ThrottledError(
                f"storage quota exceeded (max_total_bytes={self._most})",
                detail={"limit": "max_total_bytes", "max": self._most},
                retry_after_ms=_RETRY_MS,
            )

    def left(self, wanted: int) -> int | None:
        """Return how many bytes still fit if that is less than `wanted`; None when `wanted` fits."""
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
