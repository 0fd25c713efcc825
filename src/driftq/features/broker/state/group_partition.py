"""One group in one partition: what is done, what is open, and what may be handed out next.

    fresh ─deliver─► LEASED ─ack─► done
                      │  ▲
       nack or expiry │  │ deliver
                      ▼  │
                   WAITING ─due─► READY

A release, which its owner asks for, goes from LEASED straight to READY and takes the attempt back.

An open message (`OpenDelivery`) has been delivered and is not done; it takes one of the group's places in the partition
until it is. After a restart those with a recorded failure are open too, with nobody as their owner. While a frame about
a message is under way it is `settling`, and neither time nor another call touches it. While a seek is under way nothing
is handed out, and nothing logged of what was: it would be behind the seek, which ends all deliveries.

Invariants
- every message below `cursor` is done or open, so fresh ones are handed out in the order of their offsets;
- `ready` holds every READY message; what it holds beside is passed over.

In replay the messages of the partition are not known yet: done offsets are gathered in `raw`, and `settle` orders them.
"""

from enum import Enum, auto
from heapq import heappop, heappush
from typing import Protocol

from driftq.features.broker.protocols import KeyOwner
from driftq.features.broker.state.broker_frames import Landing, LaneState, RetryState, Trimmed
from driftq.features.broker.state.done_ranges import Done
from driftq.features.broker.state.message_index import Index
from driftq.system.runtime import Pending


class Holder(Protocol):
    """Whose credit a lease takes."""

    held: int


class State(Enum):
    """Of an open message."""

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
        """Its worker does not want it tried again."""
        self.state = State.READY
        self.owner: str | None = None
        """Who received the last delivery; None where this run has made none."""
        self.due = 0
        """LEASED: when the lease ends; WAITING: when it is ready. Monotonic milliseconds."""
        self.stream: Holder | None = None
        self.size = 0
        self.stored_ts = 0
        self.limit = 0
        """`max_attempts` of its policy."""
        self.policy: tuple[int, int] = (0, 0)
        """`backoff_ms` and `max_backoff_ms`."""
        self.scope: KeyOwner | None = None
        self.settling: Pending[None] | None = None
        self.void = False
        """It is not this lane's any more: done, or left behind by a seek."""

    @property
    def is_spent(self) -> bool:
        """Is it to become a dead letter, and not to be tried again?"""
        return self.doomed or 0 < self.limit <= self.attempts

    def free_credit(self) -> None:
        """Its lease is over."""
        if self.stream is not None:
            self.stream.held -= 1
            self.stream = None

    def take_credit(self, stream: Holder) -> None:
        """Hold it again, unless it is not this lane's any more."""
        if not self.void:
            self.stream = stream
            stream.held += 1


class Lane:
    """One group in one partition."""

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
        """How many messages are done, and how many bytes they have."""
        self.size = 0
        self.caught_up = False
        """Has the group once been within the limits of backpressure here, since it was last put somewhere?"""
        self.retries: dict[int, RetryState] = {}
        self.raw: dict[int, int] | None = None if live else {}
        self.open: dict[int, OpenDelivery] = {}
        self.ready: list[int] = []
        self.cursor = 0
        self.fetching = False
        self.moving: Pending[None] | None = None
        """A seek on its way to the log: who ends or fails a delivery waits for it."""
        self._retire()

    @property
    def lag(self) -> int:
        """Messages that are stored and not done."""
        return max(0, self.index.parts[self.partition].count - self.count)

    @property
    def lag_size(self) -> int:
        """Their bytes."""
        return max(0, self.index.parts[self.partition].size - self.size)

    def following(self, offset: int) -> int | None:
        """The next message behind an offset."""
        return self.index.at_or_after(self.partition, offset + 1)

    # What frames say

    def finish(self, offset: int, size: int) -> None:
        """A message is done."""
        self.retries.pop(offset, None)
        if self.raw is not None:
            self.raw[offset] = size
        elif offset not in self.done:
            self.done.add(offset, self.following)
            self.count += 1
            self.size += size

    def land(self, landing: Landing) -> None:
        """A seek."""
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
        """Retention takes what is below an offset, all of it done: it does not count any more."""
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
        """What is done for every group is done here."""
        for offset, size in self.index.parts[self.partition].retired.items():
            if offset > self.done.floor:
                self.finish(offset, size)

    def settle(self) -> None:
        """Recovery is over: the messages of the partition are known."""
        raw, self.raw = self.raw or {}, None
        for offset in sorted(raw):
            self.finish(offset, raw[offset])
        self.retries = {offset: fact for offset, fact in self.retries.items() if offset not in self.done}

    # What may be handed out

    def next_ready(self) -> OpenDelivery | None:
        """The lowest message that is to be tried again."""
        while self.ready:
            entry = self.open.get(self.ready[0])
            if entry is not None and entry.state is State.READY and entry.settling is None:
                return entry
            heappop(self.ready)
        return None

    def next_fresh(self) -> int | None:
        """The lowest message that nobody was given yet."""
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
        """It is open."""
        self.open[entry.offset] = entry
        if entry.offset == self.cursor:
            self.cursor += 1

    def make_ready(self, entry: OpenDelivery) -> None:
        """It may be tried again."""
        entry.state = State.READY
        heappush(self.ready, entry.offset)

    def close(self, entry: OpenDelivery) -> None:
        """It is open no more; another delivery of the same message, behind a seek, is."""
        if self.open.get(entry.offset) is entry:
            del self.open[entry.offset]
        entry.void = True
        entry.free_credit()

    # Checkpoints

    def capture(self) -> LaneState:
        """Everything a restart needs."""
        done = self.done
        return LaneState(
            self.partition, done.floor, done.ranges, self.count, self.size, self.caught_up, dict(self.retries)
        )

    @classmethod
    def of(cls, state: LaneState, index: Index) -> "Lane":
        """The lane of a checkpoint."""
        lane = cls(state.partition, index, live=False)
        lane.done = Done(state.floor, state.ranges)
        lane.count, lane.size, lane.caught_up = state.count, state.size, state.caught_up
        lane.retries = dict(state.retries)
        return lane
