"""Outcomes of keyed messages in groups (http-v1 §13.3 to §13.5): one entry per tenant, topic, group and key.

    absent ─deliver, begin─► PENDING ─ack, commit─► COMMITTED ─window over, nothing open─► absent
      FAILED ─deliver, begin──►│ └──nack, fail──► FAILED ─window over─► absent

Pure: this module has no access to clock or log; `now` is the engine's time in ms. Outcomes are applied when their
frame is applied, live and in replay. PENDING is never logged, so all leases end with a restart.

Invariants
- Of two owners at most one has a valid lease on a key. While an outcome is being logged (`settle`), its owner holds the
  key however long the disk takes, so no other owner repeats the work while a commit is pending.
- COMMITTED is final within its window: no begin, failure or second commit changes it or its result.
- A message that was stored before the end of the window of a COMMITTED entry is skipped, whenever it is delivered: the
  entry stays as long as one of its known messages is not done.
"""

from collections.abc import Callable
from enum import Enum
from heapq import heappop, heappush

from msgspec import Struct

from driftq.errors import NotFoundError, PreconditionError
from driftq.features.broker.idempotency.produced_keys import Id, ProduceScope
from driftq.features.broker.protocols import KeyOwner

_SWEEP_MAX = 1000
_RECHECK_MS = 60_000
"""After how many milliseconds an entry is checked again that had to stay longer than its window."""


class Status(Enum):
    """The status of a key's work for a group."""

    PENDING = "PENDING"
    COMMITTED = "COMMITTED"
    FAILED = "FAILED"


class ConsumedKey(Struct):
    """The state of the work of one key for one group."""

    status: Status
    updated_at: int
    owner: str = ""
    lease_until: int = 0
    result: bytes = b""
    last_error: str = ""
    partition: int = -1
    offset: int = -1
    """The delivery that the lease belongs to; -1 if there is none."""
    settling: int = 0
    """How many outcomes of the key are being logged."""
    queued: bool = False
    """Whether the entry is in the expiry queue."""

    def held(self, now: int) -> bool:
        """Whether an owner has a valid lease."""
        return self.status is Status.PENDING and (now < self.lease_until or self.settling > 0)


class ConsumeOutcome(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An outcome, as logged (kind 72) and as stored in checkpoints."""

    tenant: str
    topic: str
    group: str
    key: str
    committed: bool
    owner: str = ""
    result: bytes = b""
    last_error: str = ""
    offsets: list[int] = []
    """The known messages with this key at that time."""


class LeaseHeldError(PreconditionError):
    """Raised when another owner has the lease on the key."""

    def __init__(self) -> None:
        super().__init__("idempotency: lease held by another worker")


class KeyLeaseLostError(PreconditionError):
    """Raised when the owner's lease has expired."""

    def __init__(self) -> None:
        super().__init__("idempotency: lease lost or expired")


class KeyNotFoundError(NotFoundError):
    """Raised when no owner has begun work on the key."""

    def __init__(self) -> None:
        super().__init__("idempotency: key not found")


def producers(scope: KeyOwner) -> Id:
    """Return the identity of this key in the produce scope."""
    return scope.tenant, scope.topic, scope.key


class ConsumeScope:
    """The entries of all groups."""

    def __init__(self, ttl_ms: int, pending_ttl_ms: int, produced: ProduceScope) -> None:
        """Set the windows. With `ttl_ms` 0 commits are kept forever, and other entries for `pending_ttl_ms`."""
        self._ttl_ms = ttl_ms
        self._pending_ttl_ms = ttl_ms or pending_ttl_ms
        self._produced = produced
        self._entries: dict[KeyOwner, ConsumedKey] = {}
        self._queue: list[tuple[int, KeyOwner]] = []
        self.is_done: Callable[[str, str, int], bool] = lambda _topic, _group, _offset: True
        """Whether an offset of a topic is done for a group. The broker sets this function."""

    def __len__(self) -> int:
        return len(self._entries)

    # Deliveries

    def holder(self, scope: KeyOwner, now: int) -> str | None:
        """Return the owner of the valid lease on the key, or None."""
        entry = self._entries.get(scope)
        return entry.owner if entry is not None and entry.held(now) else None

    def is_committed(self, scope: KeyOwner, stored_ts: int) -> bool:
        """Whether the work of a message that was stored at `stored_ts` is done already."""
        entry = self._entries.get(scope)
        if entry is None or entry.status is not Status.COMMITTED:
            return False
        return not self._ttl_ms or stored_ts < entry.updated_at + self._ttl_ms

    def deliver(self, scope: KeyOwner, owner: str, lease_until: int, now: int, *, partition: int, offset: int) -> None:
        """Lease the key to the owner of a delivery. Called again when the lease of the delivery is extended."""
        entry = self._take(scope, owner, lease_until, now)
        entry.partition, entry.offset = partition, offset

    def release(self, scope: KeyOwner, owner: str, offset: int) -> None:
        """End the lease that came with a delivery, if the key is still held for that delivery."""
        entry = self._entries.get(scope)
        if entry is not None and (entry.owner, entry.offset) == (owner, offset):
            entry.lease_until = 0

    def void(self, topic: str, group: str) -> None:
        """End all leases of a group, because its position was moved."""
        for scope, entry in self._entries.items():
            if scope.topic == topic and scope.group == group:
                entry.lease_until = 0

    # Calls by an owner

    def find(self, scope: KeyOwner, now: int) -> ConsumedKey | None:
        """Return the entry, or None if there is none or its window is over."""
        entry = self._entries.get(scope)
        if entry is not None and self._is_over(scope, entry, now):
            self._drop(scope, now)
            return None
        return entry

    def begin(self, scope: KeyOwner, owner: str, lease_until: int, now: int) -> ConsumedKey:
        """Return the entry: COMMITTED, or leased to this owner. Raise LeaseHeldError."""
        entry = self.find(scope, now)
        if entry is not None:
            if entry.status is Status.COMMITTED:
                return entry
            if entry.held(now) and entry.owner != owner:
                raise LeaseHeldError
        return self._take(scope, owner, lease_until, now)

    def owned(self, scope: KeyOwner, owner: str, now: int) -> ConsumedKey:
        """Return the valid PENDING entry of this owner. Raise KeyNotFoundError, LeaseHeldError, KeyLeaseLostError."""
        entry = self.find(scope, now)
        if entry is None:
            raise KeyNotFoundError
        if not entry.held(now):
            raise KeyLeaseLostError
        if entry.owner != owner:
            raise LeaseHeldError
        return entry

    def settle(self, scope: KeyOwner) -> None:
        """Record that an outcome is being logged. A call of `settled` must follow."""
        if (entry := self._entries.get(scope)) is not None:
            entry.settling += 1

    def settled(self, scope: KeyOwner) -> None:
        """Record that an outcome was logged, or could not be."""
        if (entry := self._entries.get(scope)) is not None and entry.settling:
            entry.settling -= 1

    # Outcomes

    def outcome(self, scope: KeyOwner, *, committed: bool, owner: str, result: bytes, error: str) -> ConsumeOutcome:
        """Return the outcome to log, with the known offsets of the key."""
        offsets = list(self._produced.offsets(producers(scope)))
        entry = self._entries.get(scope)
        if entry is not None and entry.offset >= 0 and entry.offset not in offsets:
            offsets.append(entry.offset)
        return ConsumeOutcome(*scope, committed, owner, result, error, offsets)

    def apply(self, outcome: ConsumeOutcome, ts: int) -> None:
        """Apply a logged outcome to its entry."""
        scope = KeyOwner(outcome.tenant, outcome.topic, outcome.group, outcome.key)
        if outcome.committed:
            self.commit(scope, ts, outcome.result, owner=outcome.owner)
        else:
            self.fail(scope, ts, outcome.last_error, owner=outcome.owner)
        self._produced.known(producers(scope), outcome.offsets)

    def commit(self, scope: KeyOwner, ts: int, result: bytes = b"", *, owner: str = "") -> None:
        """Set the entry to COMMITTED, unless a commit in its window exists."""
        self._end(scope, ts, Status.COMMITTED, owner, result, "")

    def fail(self, scope: KeyOwner, ts: int, error: str, *, owner: str = "") -> None:
        """Set the entry to FAILED, so that any owner may try again, unless it is COMMITTED."""
        self._end(scope, ts, Status.FAILED, owner, b"", error)

    def _end(self, scope: KeyOwner, ts: int, status: Status, owner: str, result: bytes, error: str) -> None:
        entry = self._entry(scope, ts)
        if self.is_committed(scope, ts):
            return
        entry.status, entry.updated_at, entry.lease_until = status, ts, 0
        entry.owner, entry.result, entry.last_error = owner or entry.owner, result, error
        self._enqueue(scope, entry)

    # Expiry

    def sweep(self, now: int, most: int = _SWEEP_MAX) -> None:
        """Drop entries whose window is over, at most `most` per call."""
        for _ in range(min(len(self._queue), most)):
            if self._queue[0][0] > now:
                return
            _, scope = heappop(self._queue)
            entry = self._entries.get(scope)
            if entry is None or not entry.queued:
                continue
            entry.queued = False
            if self._is_over(scope, entry, now):
                self._drop(scope, now)
            else:
                self._enqueue(scope, entry, not_before=min(now + _RECHECK_MS, now + self._pending_ttl_ms))

    def _is_over(self, scope: KeyOwner, entry: ConsumedKey, now: int) -> bool:
        ttl_ms = self._window(entry)
        if not ttl_ms or now < entry.updated_at + ttl_ms or entry.settling or entry.held(now):
            return False
        if entry.status is not Status.COMMITTED:
            return True
        offsets = [*self._produced.offsets(producers(scope)), entry.offset]
        return all(self.is_done(scope.topic, scope.group, offset) for offset in offsets if offset >= 0)

    def _window(self, entry: ConsumedKey) -> int:
        return self._ttl_ms if entry.status is Status.COMMITTED else self._pending_ttl_ms

    def _entry(self, scope: KeyOwner, now: int) -> ConsumedKey:
        entry = self._entries.get(scope)
        if entry is None:
            entry = self._entries[scope] = ConsumedKey(Status.PENDING, now)
            self._produced.hold(producers(scope))
        return entry

    def _take(self, scope: KeyOwner, owner: str, lease_until: int, now: int) -> ConsumedKey:
        entry = self._entry(scope, now)
        entry.status, entry.updated_at = Status.PENDING, now
        entry.owner, entry.lease_until = owner, lease_until
        entry.result, entry.last_error = b"", ""
        self._enqueue(scope, entry)
        return entry

    def _enqueue(self, scope: KeyOwner, entry: ConsumedKey, *, not_before: int = 0) -> None:
        ttl_ms = self._window(entry)
        if not entry.queued and ttl_ms:
            entry.queued = True
            heappush(self._queue, (max(entry.updated_at + ttl_ms, not_before), scope))

    def _drop(self, scope: KeyOwner, now: int) -> None:
        del self._entries[scope]
        self._produced.let_go(producers(scope), now)

    # Checkpoints

    def capture(self) -> list[tuple[int, ConsumeOutcome]]:
        """Return time and outcome of all entries that survive a restart."""
        return [
            (entry.updated_at, self._captured(scope, entry))
            for scope, entry in self._entries.items()
            if entry.status is not Status.PENDING
        ]

    def _captured(self, scope: KeyOwner, entry: ConsumedKey) -> ConsumeOutcome:
        committed = entry.status is Status.COMMITTED
        return self.outcome(scope, committed=committed, owner=entry.owner, result=entry.result, error=entry.last_error)
