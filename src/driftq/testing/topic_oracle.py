"""What a topic is, by the book (http-v0 §4, §5, §7-§10, §19.7), as plain dicts: simple, slow, and not the engine's
code.

`OracleState` is what readers may see. `OracleTopic` is one, and besides it the history since the last start, so that it
can tell which states a crash may leave:

- the frames of a topic stand in one log, so what is left is the state behind a *prefix* of its history, in which
  every write acked under `fsync`, every config, every delete acked under `disk` or `fsync`, and all that was said to
  be synced has its place;
- records written under `ephemeral` are gone, in silence;
- a `disk` topic goes on behind what it had reserved, and the seqs it skips are a `crash` hole.

Where the book leaves a choice (how far a reservation reached, which head an `ephemeral` topic has) what is found is
checked against the bounds and then adopted.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from msgspec import Raw, json

from driftq.model.limits import RESERVE_MAX
from driftq.model.tombstone import Hole, Reason, Tombstone
from driftq.model.topic_config import Discard, Durability, TopicConfig

# long: one model of one contract, to be read beside it


class OracleRow(NamedTuple):
    """One record as it is written. `data` and `meta` are compact JSON."""

    data: bytes
    tag: str | None = None
    node: str | None = None
    meta: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes by the contract's accounting: data plus meta."""
        return len(self.data) + len(self.meta or b"")


class OracleRecord(NamedTuple):
    """One record as it is kept."""

    seq: int
    at: int
    """The moment of engine time at which it was stored: its age counts from there, whatever its `$ts` is."""
    row: OracleRow
    lasting: bool
    """Was it written under a class that writes anything down?"""
    text: bytes
    """The JSON object that a reader who wants everything gets."""


class OraclePage(NamedTuple):
    """One answer to a reader."""

    records: list[OracleRecord]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: Tombstone | None


class OracleKey(NamedTuple):
    """The write that used an idempotency key, and the moment of engine time at which it did."""

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
        """The stamp of the last record that was written down."""
        self.records: dict[int, OracleRecord] = {}
        """Every live record by its seq, in order."""
        self.size = 0
        self.cap_lost = 0
        self.ttl_lost = 0
        self.cap_kept = 0
        self.ttl_kept = 0
        """The same of records that were written down: what was not is lost in silence, and so is the loss of it."""
        self.all_holes: list[Hole] = []
        self.keys: dict[tuple[str, bool], OracleKey] = {}
        """By key, and by whether its use was written down."""

    def copied(self) -> "OracleState":
        """One that can go its own way."""
        other = copy(self)
        other.records, other.all_holes, other.keys = dict(self.records), list(self.all_holes), dict(self.keys)
        return other

    @property
    def durability(self) -> Durability:
        """The class in force."""
        return self.config.resolved_durability

    @property
    def count(self) -> int:
        """Live records."""
        return len(self.records)

    @property
    def earliest(self) -> int:
        """The first live record, or the one to come."""
        return next(iter(self.records), self.head + 1)

    @property
    def evict_floor(self) -> int:
        """One more than the highest seq that was live when cap or TTL took it."""
        return 1 + max(self.cap_lost, self.ttl_lost)

    @property
    def holes(self) -> list[Hole]:
        """Those that retention has not passed."""
        return [hole for hole in self.all_holes if hole.last >= self.evict_floor]

    @property
    def text(self) -> bytes:
        """Every live record as a reader gets it."""
        return b",".join([record.text for record in self.records.values()])

    # What happens to it

    def expire(self, now: int) -> None:
        """TTL, strictly: a record that is exactly as old as its TTL is still there."""
        ttl = self.config.ttl_ms
        for record in list(self.records.values()) if ttl else ():
            if now - record.at <= ttl:
                break
            self._remove(record.seq)
            self.ttl_lost = record.seq
            self.ttl_kept = record.seq if record.lasting else self.ttl_kept

    def evict(self) -> None:
        """Caps: the oldest live records go until the topic is within both."""
        config = self.config
        while (0 < config.cap_records < self.count) or (0 < config.cap_bytes < self.size):
            record = self.records[self.earliest]
            self._remove(record.seq)
            self.cap_lost = record.seq
            self.cap_kept = record.seq if record.lasting else self.cap_kept

    def write(self, rows: Sequence[OracleRow], ts: int, key: str | None, at: int | None = None) -> None:
        """Records at the head, with a stamp; `at` is the moment they are stored, the stamp itself if left out."""
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
        """Another config, in force at once."""
        self.expire(at)
        self.config = config
        self.expire(at)
        self.evict()

    def delete(self, bound: int, before: int | None, tag: str | None, prefix: str | None) -> int:
        """Remove what all given selectors select, below a bound. Returns how many records were live."""
        gone = [record.seq for record in self.records.values() if _selected(record, bound, before, tag, prefix)]
        for seq in gone:
            self._remove(seq)
        return len(gone)

    def skip_to(self, head: int) -> None:
        """The seqs up to here were reserved, and whatever they were given to is lost."""
        if head > self.head:
            first = self.head + 1
            holes = self.all_holes
            if holes and holes[-1].last == self.head and (holes[-1].reason, holes[-1].at_most) == (Reason.CRASH, True):
                first = holes.pop().first
            holes.append(Hole(first, head, Reason.CRASH, at_most=True))
            self.head = head

    def forget_ephemeral(self) -> None:
        """The process is gone, and with it what was never written down."""
        for record in list(self.records.values()):
            if not record.lasting:
                self._remove(record.seq)
        self.keys = {key: use for key, use in self.keys.items() if key[1]}

    def _remove(self, seq: int) -> None:
        self.size -= self.records.pop(seq).row.size

    # What callers are told

    def used(self, key: str, now: int) -> OracleKey | None:
        """The write that used a key, while it is remembered."""
        uses = [use for use in (self.keys.get((key, True)), self.keys.get((key, False))) if use is not None]
        newest = max(uses, default=None)
        return newest if newest is not None and now - newest.at <= self.config.idempotency_window_ms else None

    def refuses(self, records: int, size: int, under_way: tuple[int, int]) -> str | None:
        """The error code of a write that this topic does not take; what is under way counts as if it were there."""
        config = self.config
        if config.discard is not Discard.REJECT:
            return None
        if _over(records, config.cap_records) or _over(size, config.cap_bytes):
            return "record_too_large"
        if _over(self.count + under_way[0] + records, config.cap_records):
            return "topic_full"
        return "topic_full" if _over(self.size + under_way[1] + size, config.cap_bytes) else None

    def page(self, from_seq: int, *, limit: int, nodes: Iterable[str] = (), budget: int) -> OraclePage:
        """The answer to a reader, by the steps of http-v0 §8; retention has been applied."""
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
        """The tombstone that a cursor is due for what is below the floors, and where reading goes on."""
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
    """What was found, if it is in these bounds."""
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
    """One change of a topic's log."""

    def apply(self, state: OracleState) -> None:
        """Make it."""
        ...


@dataclass(slots=True)
class OracleWrite:
    """Records. The stamp is a guess until the answer tells it."""

    rows: Sequence[OracleRow]
    ts: int
    key: str | None = None
    at: int | None = None

    def apply(self, state: OracleState) -> None:
        """At the head."""
        state.write(self.rows, self.ts, self.key, self.at)

    @property
    def size(self) -> int:
        """Payload bytes."""
        return sum(row.size for row in self.rows)


@dataclass(slots=True)
class OraclePut:
    """A config, resolved."""

    config: TopicConfig
    at: int

    def apply(self, state: OracleState) -> None:
        """In force."""
        state.put(self.config, self.at)


@dataclass(slots=True)
class OracleDelete:
    """A delete of what was there at its call."""

    bound: int
    at: int
    before: int | None = None
    tag: str | None = None
    prefix: str | None = None
    deleted: int = 0

    def apply(self, state: OracleState) -> None:
        """Gone, in silence."""
        state.expire(self.at)
        self.deleted = state.delete(self.bound, self.before, self.tag, self.prefix)


class OracleFound(NamedTuple):
    """What a start shows of a topic."""

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
    """In the order of the log, those under way among them."""
    lasting: int = 0
    """So many of them survive any crash."""
    head_kept: int = 0
    """An `ephemeral` topic does not come back below this."""
    base: OracleState = field(init=False)

    def __post_init__(self) -> None:
        self.base = self.state.copied()

    def submitted(self, op: OracleOp) -> None:
        """It is on its way to the log."""
        self.ops.append(op)

    def committed(self, op: OracleOp, *, lasts: bool) -> None:
        """It has been acked; `lasts` says whether the ack promised that it survives."""
        op.apply(self.state)
        if lasts:
            self.lasting = max(self.lasting, self._place(op) + 1)

    def failed(self, op: OracleOp) -> None:
        """It was refused after all."""
        del self.ops[self._place(op)]

    def _place(self, op: OracleOp) -> int:
        return next(place for place, other in enumerate(self.ops) if other is op)

    def synced(self, seq: int) -> None:
        """Everything up to this seq is said to be on stable storage."""
        state = self.base.copied()
        for place, op in enumerate(self.ops):
            op.apply(state)
            if isinstance(op, OracleWrite) and state.head <= seq:
                self.lasting = max(self.lasting, place + 1)

    def stopped(self, found: OracleFound, now: int) -> None:
        """A graceful stop and a start: nothing is lost but what was never written down."""
        state = self.state.copied()
        state.forget_ephemeral()
        state.expire(now)
        assert _fits(state, found), f"a graceful restart changed {_shown(state)} to {found}"
        self._adopt(state)

    def crashed(self, found: OracleFound, now: int) -> None:
        """A crash and a start: is what was found one of the states that may be left?"""
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
        """What a start makes of a log that ends in this state."""
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
