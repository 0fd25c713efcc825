"""Who is waiting for a topic to be on stable storage further than it is.

A second list beside `Engine.wakeups`, so that a sync costs nothing while nobody waits for one, and does not wake
readers who have no use for it. A waiter is called after `synced_seq` of its topic may have moved, and when the topic is
deleted; it finds out by looking.
"""

from driftq.engine.append import synced_seq
from driftq.engine.catalog import Catalog
from driftq.engine.wakeup import Waiter, Wakeups
from driftq.seam.runtime import Runtime
from driftq.storage.commit import Shard
from driftq.storage.shards import Shards


class SyncWakeups(Wakeups):
    """Waiters for syncs, by the name of the topic."""

    def __init__(self, runtime: Runtime, catalog: Catalog, shards: Shards) -> None:
        super().__init__(runtime)
        self._catalog = catalog
        self._shards = shards
        self._told: dict[str, tuple[int, int]] = {}
        """The topic and its `synced_seq` that the waiters of a name were last woken for."""
        for shard in shards.all:
            shard.on_synced = self._synced

    def discard(self, name: str, waiter: Waiter) -> None:
        """Call this one no more."""
        super().discard(name, waiter)
        if not self.awaited(name):
            self._told.pop(name, None)

    def _synced(self, shard: Shard) -> None:
        """A shard has synced something."""
        for name in self.names():
            topic = self._catalog.find(name)
            if topic is None or self._shards.of(topic.id) is not shard:
                continue
            reached = (topic.id, synced_seq(topic, shard))
            if self._told.get(name) != reached:
                self._told[name] = reached
                self.wake(name)
