"""`disk` seqs that are reserved in advance in synced frames (http-v0 §19.4), so that no crash gives one out twice.

A write within the reservation of its topic does not wait for a sync. A write above it waits for the next reservation,
which is twice as wide if the previous one was too small. An idle topic gives its reservation back
(`engine/idle_topics`), and a topic that was created without a record has none.
"""

from driftq.engine.idle_topics import IdleTopics
from driftq.engine.state.control_frames import WatermarkBody, encode_body
from driftq.engine.state.topic import Topic
from driftq.engine.write.change_log import ChangeLog
from driftq.errors import DiskFullError, ShardReadOnlyError, ThrottledError
from driftq.model.limits import RESERVE_MAX, RESERVE_MIN
from driftq.storage.blocks.frame import Kind
from driftq.system.runtime import Pending


class Reservations:
    """The seq reservations of all topics."""

    def __init__(self, change_log: ChangeLog) -> None:
        self._change_log = change_log
        self.idle = IdleTopics(self._is_settled, self.reserve)

    def must_wait(self, topic: Topic, first: int, last: int) -> bool:
        """Reserve more seqs if it is time. Returns whether a write of these seqs must wait for a sync."""
        flight = topic.in_flight
        count = last - first + 1
        must_wait = last > topic.reserved
        if count > RESERVE_MAX:
            return True  # wider than any reservation: the write is synced itself before a reader sees it
        window = max(flight.reserve_window, RESERVE_MIN, count, 2 * flight.acked_since_reserve)
        if must_wait and first <= flight.reserve_asked:
            window *= 2  # the present reservation is too small, or was not synced in time
        flight.reserve_window = window = min(window, RESERVE_MAX)
        if last > flight.reserve_asked - 3 * window // 4:
            self.reserve(topic, max(last, min(last + window, first - 1 + RESERVE_MAX)))
        return must_wait

    def _is_settled(self, topic: Topic) -> bool:
        """Whether every record of a topic is on stable storage and its shard accepts another frame."""
        shard, flight = self._change_log.shard_of(topic), topic.in_flight
        under_way = flight.records or flight.waiting or flight.held
        return not under_way and flight.synced(shard) >= topic.head and shard.has_room

    def reserve(self, topic: Topic, reserved: int) -> None:
        """Log a reservation. It is valid once it is synced, and the last one replaces the others."""
        flight = topic.in_flight
        before, flight.reserve_asked = flight.reserve_asked, reserved
        # A lower one is valid from now on: no write may rely on the higher one while it is being replaced.
        topic.reserved = min(topic.reserved, reserved)

        def apply(op: int, _: int) -> None:
            topic.op = max(topic.op, op)  # a later frame may be applied already
            topic.reserved = reserved
            flight.acked_since_reserve = 0
            topic.changed = True
            if reserved > topic.head:
                self.idle.watch(topic, self._change_log.time.now())

        def settle(done: Pending[None]) -> None:
            if done.error is not None and flight.reserve_asked == reserved:
                flight.reserve_asked = min(before, topic.reserved)

        body = encode_body(WatermarkBody(reserved))
        try:
            logged = self._change_log.control(
                topic, Kind.HEAD_WATERMARK, body, apply, in_order=False, uses_reserve=False
            )
        except (ThrottledError, DiskFullError, ShardReadOnlyError):
            # The queue or the disk is full. Writes above the reservation wait for their own sync, and the next write
            # tries again.
            flight.reserve_asked = min(before, topic.reserved)
        else:
            logged.then(settle)
