"""A model of a topic by the contract (http-v0 §4, §5, §7-§10, §19.7), in plain dicts.

The model is simple and slow, and shares no code with the engine.

`OracleState` is what readers may see. `OracleTopic` is such a state and the history since the last start, so that it
can decide which states a crash may leave:

- the frames of a topic are in one log, so a crash leaves the state after a *prefix* of its history. The prefix includes
  every write acked under `fsync`, every config, every delete acked under `disk` or `fsync`, and everything that was
  reported as synced;
- records written under `ephemeral` are lost, without a tombstone;
- a `disk` topic continues after what it had reserved, and the seqs it skips are a `crash` hole.

Where the contract leaves a choice (how far a reservation reached, which head an `ephemeral` topic has), the model
checks what the start shows against the bounds, and then adopts it.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from msgspec import Raw, json

from driftq.model.limits import RESERVE_MAX
from driftq.model.tombstone import Hole, Reason, Tombstone
from driftq.model.topic_config import Discard, Durability, TopicConfig

# long: one model of one contract, to be read next to it


class OracleRow(NamedTuple):
    """One record as it is written. `data` and `meta` are compact JSON."""

    data: bytes
    tag: str | None = None
    node: str | None = None
    meta: bytes | None = None

    @property
    def size(self) -> int:
        """Return the bytes that the contract counts: data plus meta."""
        return len(self.data) + len(self.meta or b"")


class OracleRecord(NamedTuple):
    """One record as the topic keeps it."""

    seq: int
    at: int
    """Engine time at which the record was stored; its age counts from here, whatever its `$ts` is."""
    row: OracleRow
    lasting: bool
    """Whether it was written under a class that stores records on disk."""
    text: bytes
    """The JSON object for a reader that asks for all fields."""


class OraclePage(NamedTuple):
    """One answer to a reader."""

    records: list[OracleRecord]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: Tombstone | None


class OracleKey(NamedTuple):
    """The write that used an idempotency key, and the engine time of that use."""

    at: int
    first_seq: int
    count: int  # type: ignore[assignment]  # hides tuple.count


def _record(seq: int, ts: int, at: int, row: OracleRow, *, lasting: bool) -> OracleRecord:
    fields: dict[str, object] = {"$seq": seq, "$ts": ts}
    if row.node is not None:
        fields["$node"] = row.node
    if row.tag is not None:
        fields["$tag"] = row.tag
    if row.meta is not None:
        fields["meta"] = Raw(row.meta)
    fields["data"] = Raw(row.data)
    return OracleRecord(seq, at, row, lasting, json.encode(fields))


class OracleState:
    """One topic as readers see it."""

    def __init__(self, config: TopicConfig) -> None:
        self.config = config
        self.head = 0
        self.last_ts = 0
        self.ts_kept = 0
        """The stamp of the last record that was stored on disk."""
        self.records: dict[int, OracleRecord] = {}
        """All live records by seq, in order."""
        self.size = 0
        self.cap_lost = 0
        self.ttl_lost = 0
        self.cap_kept = 0
        self.ttl_kept = 0
        """`cap_lost` and `ttl_lost`, counting only records stored on disk: other records are lost without a trace."""
        self.all_holes: list[Hole] = []
        self.keys: dict[tuple[str, bool], OracleKey] = {}
        """Uses by key and by whether the use was stored on disk."""

    def copied(self) -> "OracleState":
        """Return a copy that can change independently."""
        other = copy(self)
        other.records, other.all_holes, other.keys = dict(self.records), list(self.all_holes), dict(self.keys)
        return other

    @property
    def durability(self) -> Durability:
        """Return the durability class in force."""
        return self.config.resolved_durability

    @property
    def count(self) -> int:
        """Return the number of live records."""
        return len(self.records)

    @property
    def earliest(self) -> int:
        """Return the seq of the first live record, or the next seq if there is none."""
        return next(iter(self.records), self.head + 1)

    @property
    def evict_floor(self) -> int:
        """Return one more than the highest seq that was live when cap or TTL removed it."""
        return 1 + max(self.cap_lost, self.ttl_lost)

    @property
    def holes(self) -> list[Hole]:
        """Return the holes that retention has not passed."""
        return [hole for hole in self.all_holes if hole.last >= self.evict_floor]

    @property
    def text(self) -> bytes:
        """Return all live records as a reader gets them."""
        return b",".join([record.text for record in self.records.values()])

    # State changes

    def expire(self, now: int) -> None:
        """Apply the TTL. A record that is exactly as old as the TTL is still live."""
        ttl = self.config.ttl_ms
        for record in list(self.records.values()) if ttl else ():
            if now - record.at <= ttl:
                break
            self._remove(record.seq)
            self.ttl_lost = record.seq
            self.ttl_kept = record.seq if record.lasting else self.ttl_kept

    def evict(self) -> None:
        """Apply the caps: remove the oldest live records until the topic is within both."""
        config = self.config
        while (0 < config.cap_records < self.count) or (0 < config.cap_bytes < self.size):
            record = self.records[self.earliest]
            self._remove(record.seq)
            self.cap_lost = record.seq
            self.cap_kept = record.seq if record.lasting else self.cap_kept

    def write(self, rows: Sequence[OracleRow], ts: int, key: str | None, at: int | None = None) -> None:
        """Append records with the stamp `ts`; `at` is the time they are stored, by default the stamp."""
        at = ts if at is None else at
        self.expire(at)
        lasting = self.durability is not Durability.EPHEMERAL
        if key is not None:
            self.keys[key, lasting] = OracleKey(at, self.head + 1, len(rows))
        for row in rows:
            self.head += 1
            self.records[self.head] = _record(self.head, ts, at, row, lasting=lasting)
            self.size += row.size
        self.last_ts = ts
        self.ts_kept = ts if lasting else self.ts_kept
        self.evict()

    def put(self, config: TopicConfig, at: int) -> None:
        """Replace the config, in force at once."""
        self.expire(at)
        self.config = config
        self.expire(at)
        self.evict()

    def delete(self, bound: int, before: int | None, tag: str | None, prefix: str | None) -> int:
        """Remove records below `bound` that match all given selectors. Return how many of them were live."""
        gone = [record.seq for record in self.records.values() if _selected(record, bound, before, tag, prefix)]
        for seq in gone:
            self._remove(seq)
        return len(gone)

    def skip_to(self, head: int) -> None:
        """Skip the seqs up to `head`: they were reserved, and what was written under them is lost."""
        if head > self.head:
            first = self.head + 1
            holes = self.all_holes
            if holes and holes[-1].last == self.head and (holes[-1].reason, holes[-1].at_most) == (Reason.CRASH, True):
                first = holes.pop().first
            holes.append(Hole(first, head, Reason.CRASH, at_most=True))
            self.head = head

    def forget_ephemeral(self) -> None:
        """Remove what was never stored on disk, as the end of the process does."""
        for record in list(self.records.values()):
            if not record.lasting:
                self._remove(record.seq)
        self.keys = {key: use for key, use in self.keys.items() if key[1]}

    def _remove(self, seq: int) -> None:
        self.size -= self.records.pop(seq).row.size

    # Answers to callers

    def used(self, key: str, now: int) -> OracleKey | None:
        """Return the write that used a key, while the key is remembered."""
        uses = [use for use in (self.keys.get((key, True)), self.keys.get((key, False))) if use is not None]
        newest = max(uses, default=None)
        return newest if newest is not None and now - newest.at <= self.config.idempotency_window_ms else None

    def refuses(self, records: int, size: int, under_way: tuple[int, int]) -> str | None:
        """Return the error code for a write that this topic refuses, or None. Writes in flight count as stored."""
        config = self.config
        if config.discard is not Discard.REJECT:
            return None
        if _over(records, config.cap_records) or _over(size, config.cap_bytes):
            return "record_too_large"
        if _over(self.count + under_way[0] + records, config.cap_records):
            return "topic_full"
        return "topic_full" if _over(self.size + under_way[1] + size, config.cap_bytes) else None

    def page(self, from_seq: int, *, limit: int, nodes: Iterable[str] = (), budget: int) -> OraclePage:
        """Return the answer to a reader, by the steps of http-v0 §8; retention has been applied."""
        tombstone, cursor = self._notice(from_seq)
        unread = [hole for hole in self.holes if hole.last > cursor]
        if tombstone is None and unread and not any(cursor < seq < unread[0].first for seq in self.records):
            hole = unread.pop(0)
            tombstone = self._gap(
                max(cursor + 1, hole.first), hole.last, hole.reason, hole.last + 1, at_most=hole.at_most
            )
            cursor = hole.last
        stop = unread[0].first if unread else self.head + 1
        window = [record for seq, record in self.records.items() if cursor < seq < stop][:limit]
        own = frozenset(nodes) if self.config.dedupe_node else frozenset()
        delivered: list[OracleRecord] = []
        spent = 0
        for record in window:
            if record.row.node is not None and record.row.node in own:
                continue
            if delivered and spent + record.row.size > budget:
                return OraclePage(delivered, record.seq - 1, self.head, self.earliest, tombstone)
            delivered.append(record)
            spent += record.row.size
        last = window[-1].seq if len(window) == limit else stop - 1
        return OraclePage(delivered, last, self.head, self.earliest, tombstone)

    def _notice(self, from_seq: int) -> tuple[Tombstone | None, int]:
        """Return the tombstone that a cursor gets for what is below the floors, and where reading continues."""
        if from_seq > self.head:
            return self._gap(1, self.head, Reason.RECREATED, self.earliest), self.earliest - 1
        if from_seq + 1 >= self.evict_floor:
            return None, from_seq
        causes = [Reason.CAP] if self.cap_lost > from_seq else []
        causes += [Reason.TTL] if self.ttl_lost > from_seq else []
        reason = Reason.MIXED if len(causes) == 2 else causes[0]
        return self._gap(from_seq + 1, self.earliest - 1, reason, self.earliest), self.earliest - 1

    def _gap(self, first: int, last: int, reason: Reason, resume: int, *, at_most: bool = False) -> Tombstone:
        return Tombstone(
            seq=resume,
            gap_from=first,
            gap_to=last,
            reason=reason,
            missed_estimate=max(0, last - first + 1),
            earliest_seq=self.earliest,
            head_seq=self.head,
            at_most=at_most,
        )


def _between(least: int, found: int, most: int) -> int:
    """Return `found` if it is within the bounds, else the nearest bound."""
    return min(max(least, found), most)


def _over(amount: int, cap: int) -> bool:
    return 0 < cap < amount


def _selected(record: OracleRecord, bound: int, before: int | None, tag: str | None, prefix: str | None) -> bool:
    own = record.row.tag
    return (
        record.seq < bound
        and (before is None or record.seq < before)
        and (tag is None or own == tag)
        and (prefix is None or (own is not None and own.startswith(prefix)))
    )


class OracleOp(Protocol):
    """One change in a topic's log."""

    def apply(self, state: OracleState) -> None:
        """Apply the change to a state."""
        ...


@dataclass(slots=True)
class OracleWrite:
    """A write of records. The stamp is a guess until the answer gives the real one."""

    rows: Sequence[OracleRow]
    ts: int
    key: str | None = None
    at: int | None = None

    def apply(self, state: OracleState) -> None:
        """Append the records at the head."""
        state.write(self.rows, self.ts, self.key, self.at)

    @property
    def size(self) -> int:
        """Return the payload bytes of all rows."""
        return sum(row.size for row in self.rows)


@dataclass(slots=True)
class OraclePut:
    """A change of the config, which is resolved already."""

    config: TopicConfig
    at: int

    def apply(self, state: OracleState) -> None:
        """Put the config in force."""
        state.put(self.config, self.at)


@dataclass(slots=True)
class OracleDelete:
    """A delete of records that existed when it was called."""

    bound: int
    at: int
    before: int | None = None
    tag: str | None = None
    prefix: str | None = None
    deleted: int = 0

    def apply(self, state: OracleState) -> None:
        """Remove the records without a tombstone."""
        state.expire(self.at)
        self.deleted = state.delete(self.bound, self.before, self.tag, self.prefix)


class OracleFound(NamedTuple):
    """The state of a topic that a start shows."""

    config: TopicConfig
    head: int
    last_ts: int
    cap_lost: int
    ttl_lost: int
    holes: list[Hole]
    text: bytes


@dataclass(slots=True)
class OracleTopic:
    """A topic with its history since the last start."""

    state: OracleState
    ops: list[OracleOp] = field(default_factory=list)
    """Changes in the order of the log, including those in flight."""
    lasting: int = 0
    """Number of leading changes that survive any crash."""
    head_kept: int = 0
    """Lowest head that an `ephemeral` topic may come back with."""
    base: OracleState = field(init=False)

    def __post_init__(self) -> None:
        self.base = self.state.copied()

    def submitted(self, op: OracleOp) -> None:
        """Add a change that is on its way to the log."""
        self.ops.append(op)

    def committed(self, op: OracleOp, *, lasts: bool) -> None:
        """Apply a change that was acked; `lasts` is whether the ack promised that it survives."""
        op.apply(self.state)
        if lasts:
            self.lasting = max(self.lasting, self._place(op) + 1)

    def failed(self, op: OracleOp) -> None:
        """Remove a change that was refused after all."""
        del self.ops[self._place(op)]

    def _place(self, op: OracleOp) -> int:
        return next(place for place, other in enumerate(self.ops) if other is op)

    def synced(self, seq: int) -> None:
        """Note that everything up to this seq was reported to be on stable storage."""
        state = self.base.copied()
        for place, op in enumerate(self.ops):
            op.apply(state)
            if isinstance(op, OracleWrite) and state.head <= seq:
                self.lasting = max(self.lasting, place + 1)

    def stopped(self, found: OracleFound, now: int) -> None:
        """Check the state after a graceful restart: only what was never stored on disk may be lost."""
        state = self.state.copied()
        state.forget_ephemeral()
        state.expire(now)
        assert _fits(state, found), f"a graceful restart changed {_shown(state)} to {found}"
        self._adopt(state)

    def crashed(self, found: OracleFound, now: int) -> None:
        """Check that the state after a crash and a start is one of those that the crash may leave."""
        state = self.base.copied()
        left: OracleState | None = None
        tried = []
        for place in range(len(self.ops) + 1):
            if place:
                self.ops[place - 1].apply(state)
            if place >= self.lasting:
                candidate = self._left(state, found, now)
                left = candidate if _fits(candidate, found) else left
                tried.append(_shown(candidate))
        assert left is not None, f"no crash may leave {found}; it may leave\n" + "\n".join(map(str, tried))
        acked = self.state.head
        if left.durability in (Durability.DISK, Durability.FSYNC) and self.state.durability is left.durability:
            assert acked <= left.head <= acked + RESERVE_MAX, f"acked up to {acked}, and the head is {left.head}"
        assert left.durability is not Durability.EPHEMERAL or self.head_kept <= left.head <= acked
        self._adopt(left)

    def _left(self, state: OracleState, found: OracleFound, now: int) -> OracleState:
        """Return the state that a start makes from a log that ends in this state."""
        candidate = state.copied()
        candidate.expire(now)
        candidate.forget_ephemeral()
        if candidate.durability is Durability.DISK:
            candidate.skip_to(found.head)
        elif candidate.durability is Durability.EPHEMERAL:
            candidate.head = found.head
        candidate.cap_lost = _between(candidate.cap_kept, found.cap_lost, candidate.cap_lost)
        candidate.ttl_lost = _between(candidate.ttl_kept, found.ttl_lost, candidate.ttl_lost)
        candidate.last_ts = _between(candidate.ts_kept, found.last_ts, candidate.last_ts)
        return candidate

    def _adopt(self, state: OracleState) -> None:
        self.state, self.base = state, state.copied()
        self.ops, self.lasting, self.head_kept = [], 0, state.head


def _fits(state: OracleState, found: OracleFound) -> bool:
    return (
        (state.head, state.last_ts) == (found.head, found.last_ts)
        and (state.cap_lost, state.ttl_lost) == (found.cap_lost, found.ttl_lost)
        and state.config == found.config
        and state.holes == found.holes
        and state.text == found.text
    )


def _shown(state: OracleState) -> OracleFound:
    return OracleFound(state.config, state.head, state.last_ts, state.cap_lost, state.ttl_lost, state.holes, state.text)
