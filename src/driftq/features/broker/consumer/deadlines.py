"""Deadlines of the broker: leases that end and retries that become ready, checked once per tick (http-v1 §7).

Nothing is handled before its time, or later than one tick after it. Without entries there is no tick. An entry whose
time has changed stays in the heap until it comes up, or until such entries are most of the heap.

A check that fails is repeated at the next tick, and does not stop the other checks.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

from driftq.features.broker.state.broker_state import BrokerTopic
from driftq.features.broker.state.group import ConsumerGroup
from driftq.features.broker.state.group_partition import GroupPartition, OpenDelivery
from driftq.system.runtime import Runtime, Timer, each

_STALE_MIN = 64


class OpenMessage(NamedTuple):
    """The place of an open message: topic, group and partition state."""

    topic: BrokerTopic
    group: ConsumerGroup
    group_partition: GroupPartition


class Deadlines:
    """All open messages with a deadline."""

    def __init__(
        self,
        runtime: Runtime,
        now: Callable[[], int],
        tick_ms: int,
        due: Callable[[OpenMessage, OpenDelivery], None],
        sweep: Callable[[], None],
    ) -> None:
        """Set the clock, the tick and the callbacks. `now` is the engine's running time in milliseconds."""
        self._runtime = runtime
        self.now = now
        self._tick_ms = tick_ms
        self._due = due
        self._sweep = sweep
        self._heap: list[tuple[int, int, int, OpenMessage, OpenDelivery]] = []
        self._numbers = count()
        self._kept = 0
        self._group_partitions: dict[tuple[int, str, int], tuple[ConsumerGroup, int]] = {}
        self._timer: Timer | None = None
        self._closed = False

    def add(self, open_message: OpenMessage, entry: OpenDelivery) -> None:
        """Call `due` for a message after the time `entry.due`."""
        heappush(self._heap, (entry.due, next(self._numbers), entry.due, open_message, entry))
        if len(self._heap) > 2 * self._kept + _STALE_MIN:
            self._heap = [held for held in self._heap if not held[4].void and held[4].due == held[2]]
            heapify(self._heap)
            self._kept = len(self._heap)
        self._arm()

    def again(self, open_message: OpenMessage, entry: OpenDelivery) -> None:
        """Call `due` for a message once more, at the next tick."""
        heappush(self._heap, (max(self.now(), entry.due), next(self._numbers), entry.due, open_message, entry))
        self._arm()

    def stir_later(self, topic: BrokerTopic, group: ConsumerGroup, partition: int) -> None:
        """Try again, at the next tick, to deliver messages of this partition to the group."""
        self._group_partitions[topic.id, group.name, partition] = (group, partition)
        self._arm()

    def close(self) -> None:
        """Stop the ticks for good."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        if self._timer is None and not self._closed:
            self._timer = self._runtime.later(self._tick_ms, self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            each((self._stir, self._sweep, self._look), lambda step: step())
        finally:
            if self._heap or self._group_partitions:
                self._arm()

    def _stir(self) -> None:
        group_partitions, self._group_partitions = self._group_partitions, {}
        for group, partition in group_partitions.values():
            group.stir(partition)

    def _look(self) -> None:
        now = self.now()
        due: list[tuple[OpenMessage, OpenDelivery]] = []
        while self._heap and self._heap[0][0] < now:
            _, _, moment, open_message, entry = heappop(self._heap)
            if not entry.void and entry.due == moment:
                due.append((open_message, entry))
        each(due, self._look_at)

    def _look_at(self, found: tuple[OpenMessage, OpenDelivery]) -> None:
        try:
            self._due(*found)
        except Exception:
            self.again(*found)
            raise
