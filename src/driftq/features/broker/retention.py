"""Retention of the broker's topics (http-v1 §16, §18.3 E14): removes messages that are old and done for every group.

    looked at → bound found → its messages read → logged (TRIM) → gone

A message is removed when it is older than `--v1-retention-ms`, it is done for every known group, and all messages
before it are removed too. So a topic begins at an offset, and future groups begin there. In a topic without groups,
only the age counts. Dead letters are the exception: without groups they stay until a redrive has moved them.

Blocks are removed as a whole, except the one that is still being written. Removed messages are read once more, because
the totals count messages and bytes per partition. A trim is one frame: records, totals and the state of groups change
in the same step, live and in replay. From the moment a trim is requested, its messages are not delivered any more.
"""

import logging
from bisect import bisect_left
from collections.abc import Iterable

from driftq.engine.engine import Engine
from driftq.errors import DriftQError
from driftq.features.broker.state.broker_frames import GroupKind, TrimBody, Trimmed, encode
from driftq.features.broker.state.broker_state import BrokerState, BrokerTopic
from driftq.features.broker.state.group import ConsumerGroup
from driftq.features.broker.state.stored_messages import read_page
from driftq.model.names import DLQ
from driftq.system.runtime import Pending, Runtime, Timer, run

_log = logging.getLogger(__name__)

_LOOKS = 10
"""How often a topic is checked during the retention time."""
_LOOK_MS_MIN, _LOOK_MS_MAX = 100, 60_000
_PAGE = 256
_STEP = 10_000
"""How many messages one frame removes, plus the rest of their block."""


class Retention:
    """Removes old messages from every topic, repeatedly."""

    def __init__(self, engine: Engine, runtime: Runtime, broker_state: BrokerState, retention_ms: int) -> None:
        self._engine = engine
        self._runtime = runtime
        self._broker_state = broker_state
        self._age_ms = retention_ms
        self._look_ms = min(max(retention_ms // _LOOKS, _LOOK_MS_MIN), _LOOK_MS_MAX)
        self._timer: Timer | None = None
        self._closed = False

    def start(self) -> None:
        """Start the timer, if retention is configured."""
        if self._age_ms and not self._closed:
            self._timer = self._runtime.later(self._look_ms, self._look)

    def close(self) -> None:
        """Stop the timer and the running sweep."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        run(self.sweep()).then(self._looked)

    def _looked(self, done: Pending[None]) -> None:
        # A block that cannot be read, or a log that accepts nothing, is not reported: the next check tries again.
        if done.error is not None and not isinstance(done.error, DriftQError):
            _log.error("retention failed; the next check tries again", exc_info=done.error)
        self.start()

    async def sweep(self) -> None:
        """Remove all messages that may be removed now. Raise a DriftQError."""
        for topic in list(self._broker_state.by_id.values()):
            while not self._closed and await self._trim(topic):
                pass

    async def _trim(self, topic: BrokerTopic) -> bool:
        """Remove the messages of one frame. Return whether there may be more to remove."""
        index = topic.index
        oldest_kept = self._engine.time.kept_from(self._age_ms)
        first = next(topic.log.parts(index.start + 1), None)
        if first is None or first.first_ts >= oldest_kept:
            return False
        start = self._reach(topic, oldest_kept, self._bound(topic))
        taken = await self._sum(topic, start)
        # During the read a group may have joined, or may have been moved back.
        if start <= index.start or topic.pinned or self._bound(topic) < start:
            return False
        index.leave(start)
        trimming: Pending[None] = Pending()
        topic.trimming = trimming
        try:
            await self._broker_state.log(topic, GroupKind.TRIM, encode(TrimBody(start, taken)))
        finally:
            index.leave(index.start)
            topic.trimming = None
            trimming.resolve(None)
        return True

    def _reach(self, topic: BrokerTopic, oldest_kept: int, bound: int) -> int:
        """Return the offset up to which messages may be removed: whole blocks, and rows of the open block in memory."""
        begin = reached = topic.index.start
        for part in topic.log.parts(begin + 1):
            if part.last_ts < oldest_kept and part.end_seq - 1 <= bound:
                reached = part.end_seq - 1
                if reached - begin >= _STEP:
                    break
                continue
            opened = topic.log.open
            if opened is not None and topic.log.is_open(part):
                times = opened.times(0, part.count)
                old = bisect_left([times] * part.count if isinstance(times, int) else times, oldest_kept)
                reached = max(reached, min(part.first_seq + old - 1, bound))
            break
        return reached

    async def _sum(self, topic: BrokerTopic, start: int) -> list[Trimmed]:
        """Return the totals of all messages below an offset, per partition."""
        index = topic.index
        sums: dict[int, tuple[int, int]] = {}
        reached = index.start
        while reached < start:
            page, reached = await read_page(self._engine, topic.log, reached, min(reached + _PAGE, start))
            for found in page:
                partition = index.partition_at(found.offset)
                if partition is not None:
                    count, size = sums.get(partition, (0, 0))
                    sums[partition] = (count + 1, size + found.message.size)
        return [Trimmed(partition, count, size) for partition, (count, size) in sorted(sums.items())]

    def _bound(self, topic: BrokerTopic) -> int:
        """Return the lowest offset that a group of the topic has not done. That message and all later ones stay."""
        groups: Iterable[ConsumerGroup | None] = topic.groups.values()
        if not topic.groups and topic.name.startswith(DLQ):
            groups = [None]
        return min((self._open_from(topic, group) for group in groups), default=topic.index.head)

    def _open_from(self, topic: BrokerTopic, group: ConsumerGroup | None) -> int:
        """Return the lowest offset that a group has not done, or the head if it has done all.

        `group=None` means a group that has done nothing. A message that is done for every group is skipped.
        """
        index = topic.index
        lowest = index.head
        for partition, part in enumerate(index.parts):
            group_partition = None if group is None else group.group_partitions.get(partition)
            at = index.at_or_after(partition, 0 if group_partition is None else group_partition.done.floor + 1)
            while group_partition is None and at is not None and at in part.retired:
                at = index.at_or_after(partition, at + 1)
            if at is not None:
                lowest = min(lowest, at)
        return lowest
