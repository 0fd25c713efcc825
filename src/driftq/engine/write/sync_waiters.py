"""Callers that wait until more of a topic is on stable storage.

This list is separate from `Engine.wakeups`, so that a sync costs nothing while no caller waits for one, and does not
wake readers who do not need it. A waiter is called after `synced_seq` of its topic may have moved, and when the topic
is deleted; it must check which of them happened.
"""

from collections import deque
from collections.abc import Callable

from driftq.engine.read.waiting_readers import Waiter, Wakeups
from driftq.engine.state.catalog import Catalog
from driftq.storage.wal.group_commit import Shard
from driftq.storage.wal.shards import Shards
from driftq.system.runtime import Runtime


class SyncWakeups(Wakeups):
    """Waiters for syncs, by the name of the topic."""

    def __init__(self, runtime: Runtime, catalog: Catalog, shards: Shards) -> None:
        super().__init__(runtime)
        self._catalog = catalog
        self._shards = shards
        self._told: dict[str, tuple[int, int]] = {}
        """The topic id and the `synced_seq` for which the waiters of a name were woken last."""
        self._due: dict[Shard, deque[tuple[int, Callable[[], None]]]] = {shard: deque() for shard in shards.all}
        """Callbacks with the number of the submission that must be synced, in ascending order."""
        for shard in shards.all:
            shard.on_synced = self._synced

    def after(self, shard: Shard, number: int, callback: Callable[[], None]) -> None:
        """Call back once a submission is on stable storage; at once if it is. Call this in the order of submissions."""
        if number <= shard.synced_number:
            callback()
        else:
            self._due[shard].append((number, callback))

    def discard(self, name: str, waiter: Waiter) -> None:
        """Stop calling this waiter for a topic."""
        super().discard(name, waiter)
        if not self.awaited(name):
            self._told.pop(name, None)

    def _synced(self, shard: Shard) -> None:
        """Run callbacks and wake waiters after a sync of a shard."""
        due = self._due[shard]
        while due and due[0][0] <= shard.synced_number:
            due.popleft()[1]()
        for name in self.names():
            topic = self._catalog.find(name)
            if topic is None or self._shards.of(topic.id) is not shard:
                continue
            reached = (topic.id, topic.in_flight.synced(shard))
            if self._told.get(name) != reached:
                self._told[name] = reached
                self.wake(name)
