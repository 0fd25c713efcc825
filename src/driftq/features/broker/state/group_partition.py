"""One group in one partition: which messages are done, which are open, and which can be delivered next.

    fresh ─deliver─► LEASED ─ack─► done
                      │  ▲
       nack or expiry │  │ deliver
                      ▼  │
                   WAITING ─due─► READY

A release, which the owner requests, goes from LEASED directly to READY and takes the attempt back.

An open message (`OpenDelivery`) was delivered and is not done; until it is done, it takes one of the group's places in
the partition. After a restart, messages with a recorded failure are open too, without an owner. While a frame about a
message is being logged, the message is `settling`: neither timers nor other calls change it. While a seek is being
logged, nothing is delivered and no outcome is logged: its frame would come after the seek, which ends all deliveries.

Invariants
- every message below `cursor` is done or open, so fresh messages are delivered in the order of their offsets;
- `ready` contains every READY message; other entries in it are ignored.

In replay the messages of the partition are not known yet: done offsets are gathered in `raw`, and `settle` orders
them.
"""

from enum import Enum, auto
from heapq import heappop, heappush
from typing import Protocol

from driftq.features.broker.protocols import KeyOwner
from driftq.features.broker.state.broker_frames import GroupPartitionState, Landing, RetryState, Trimmed
from driftq.features.broker.state.done_ranges import Done
from driftq.features.broker.state.message_index import Index
from driftq.system.runtime import Pending


class Holder(Protocol):
    """The stream whose credit a lease takes."""

    held: int


class State(Enum):
    """The state of an open message."""

    LEASED = auto()
    WAITING = auto()
    READY = auto()


class OpenDelivery:
    """A message that was delivered and is not done."""

    __slots__ = (
        "attempts",
        "doomed",
        "due",
        "last_error",
        "limit",
        "offset",
        "owner",
        "policy",
        "scope",
        "settling",
        "size",
        "state",
        "stored_ts",
        "stream",
        "void",
    )

    def __init__(self, offset: int, attempts: int = 0, last_error: str = "") -> None:
        self.offset = offset
        self.attempts = attempts
        self.last_error = last_error
        self.doomed = False
        """Whether its worker asked not to try it again."""
        self.state = State.READY
        self.owner: str | None = None
        """The owner of the last delivery; None if this run has not delivered it."""
        self.due = 0
        """The end of the lease (LEASED) or of the delay (WAITING), in milliseconds of engine time."""
        self.stream: Holder | None = None
        self.size = 0
        self.stored_ts = 0
        self.limit = 0
        """The `max_attempts` of its retry policy."""
        self.policy: tuple[int, int] = (0, 0)
        """The `backoff_ms` and `max_backoff_ms` of its retry policy."""
        self.scope: KeyOwner | None = None
        self.settling: Pending[None] | None = None
        self.void = False
        """Whether it no longer belongs to this partition state: done, or ended by a seek."""

    @property
    def is_spent(self) -> bool:
        """Whether the message becomes a dead letter instead of being delivered again.

        Its worker asked for that, or `attempts` has reached `limit` (0: no limit).
        """
        return self.doomed or 0 < self.limit <= self.attempts

    def free_credit(self) -> None:
        """Return its credit to the stream, because the lease is over."""
        if self.stream is not None:
            self.stream.held -= 1
            self.stream = None

    def take_credit(self, stream: Holder) -> None:
        """Take a credit of the stream again, unless the delivery is void."""
        if not self.void:
            self.stream = stream
            stream.held += 1


class GroupPartition:
    """The state of one group in one partition."""

    __slots__ = (
        "caught_up",
        "count",
        "cursor",
        "done",
        "fetching",
        "index",
        "moving",
        "open",
        "partition",
        "raw",
        "ready",
        "retries",
        "size",
    )

    def __init__(self, partition: int, index: Index, *, live: bool) -> None:
        self.partition = partition
        self.index = index
        self.done = Done()
        self.count = 0
        """The number of done messages; `size` is their total in bytes."""
        self.size = 0
        self.caught_up = False
        """Whether the group was within the limits of backpressure in this partition at least once
        since its last seek.
        """
        self.retries: dict[int, RetryState] = {}
        self.raw: dict[int, int] | None = None if live else {}
        self.open: dict[int, OpenDelivery] = {}
        self.ready: list[int] = []
        self.cursor = 0
        self.fetching = False
        self.moving: Pending[None] | None = None
        """A seek that is being logged. Calls that settle a delivery wait for it."""
        self._retire()

    @property
    def lag(self) -> int:
        """The number of messages that are stored and not done."""
        return max(0, self.index.parts[self.partition].count - self.count)

    @property
    def lag_size(self) -> int:
        """The bytes of keys and values that are stored and not done."""
        return max(0, self.index.parts[self.partition].size - self.size)

    def following(self, offset: int) -> int | None:
        """Return the next message after an offset, or None."""
        return self.index.at_or_after(self.partition, offset + 1)

    # Committed frames

    def finish(self, offset: int, size: int) -> None:
        """Record that a message is done."""
        self.retries.pop(offset, None)
        if self.raw is not None:
            self.raw[offset] = size
        elif offset not in self.done:
            self.done.add(offset, self.following)
            self.count += 1
            self.size += size

    def land(self, landing: Landing) -> None:
        """Apply a seek: end all deliveries and set the new position."""
        for entry in self.open.values():
            entry.void = True
            entry.free_credit()
        self.done = Done(landing.floor)
        self.count, self.size = landing.count, landing.size
        self.retries.clear()
        self.open.clear()
        self.ready.clear()
        self.cursor = 0
        self.caught_up = False
        if self.raw is not None:
            self.raw.clear()
        self._retire()

    def trim(self, start: int, gone: Trimmed) -> None:
        """Subtract done messages below an offset from the totals, because retention removes them."""
        count, size = gone.count, gone.size
        for offset in [offset for offset in self.raw or () if offset < start]:
            assert self.raw is not None
            if offset not in self.done:
                count -= 1
                size -= self.raw[offset]
            del self.raw[offset]
        self.count = max(0, self.count - count)
        self.size = max(0, self.size - size)

    def _retire(self) -> None:
        """Record messages as done that are done for every group."""
        for offset, size in self.index.parts[self.partition].retired.items():
            if offset > self.done.floor:
                self.finish(offset, size)

    def settle(self) -> None:
        """Finish recovery: order the gathered done offsets, because the messages of the partition are known now."""
        raw, self.raw = self.raw or {}, None
        for offset in sorted(raw):
            self.finish(offset, raw[offset])
        self.retries = {offset: fact for offset, fact in self.retries.items() if offset not in self.done}

    # Deliveries

    def next_ready(self) -> OpenDelivery | None:
        """Return the lowest message to deliver again, or None."""
        while self.ready:
            entry = self.open.get(self.ready[0])
            if entry is not None and entry.state is State.READY and entry.settling is None:
                return entry
            heappop(self.ready)
        return None

    def next_fresh(self) -> int | None:
        """Return the lowest message that was never delivered, or None."""
        offset: int | None = self.cursor
        while offset is not None:
            offset = self.index.at_or_after(self.partition, self.done.beyond(offset))
            if offset is None or (offset not in self.done and offset not in self.open):
                break
            offset += 1
        if offset is not None:
            self.cursor = offset
        return offset

    def hand_out(self, entry: OpenDelivery) -> None:
        """Record a message as open."""
        self.open[entry.offset] = entry
        if entry.offset == self.cursor:
            self.cursor += 1

    def make_ready(self, entry: OpenDelivery) -> None:
        """Allow another delivery of a message."""
        entry.state = State.READY
        heappush(self.ready, entry.offset)

    def close(self, entry: OpenDelivery) -> None:
        """Close this delivery. A newer delivery of the same offset, made after a seek, is left alone."""
        if self.open.get(entry.offset) is entry:
            del self.open[entry.offset]
        entry.void = True
        entry.free_credit()

    # Checkpoints

    def capture(self) -> GroupPartitionState:
        """Return the state that a restart needs."""
        done = self.done
        return GroupPartitionState(
            self.partition, done.floor, done.ranges, self.count, self.size, self.caught_up, dict(self.retries)
        )

    @classmethod
    def of(cls, state: GroupPartitionState, index: Index) -> "GroupPartition":
        """Return the partition state of a checkpoint."""
        group_partition = cls(state.partition, index, live=False)
        group_partition.done = Done(state.floor, state.ranges)
        group_partition.count, group_partition.size, group_partition.caught_up = (
            state.count,
            state.size,
            state.caught_up,
        )
        group_partition.retries = dict(state.retries)
        return group_partition
