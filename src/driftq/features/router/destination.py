"""Routers, and their common state per destination: an inflow is all routers of one dest. They have one source.

An inflow copies in one order, live and in replay: by source seq, and for one record by router number. The seqs of
copies therefore follow from the log of the source, the routers, and the positions of direct writes to dest.

Invariants
- `cursor` is the last source seq that a router has passed: copied, or consumed without a copy. It never decreases.
- A change by PUT applies to source records after the last one at the time of its commit (`specs`).
"""

from bisect import bisect_right
from typing import NamedTuple

from driftq.engine.read.tag_lookup import Match
from driftq.engine.read.topic_page import Damaged, Missing, rows_nowait
from driftq.engine.state.topic import Topic
from driftq.engine.write.deleter import parse_match
from driftq.features.router.hops import Hops
from driftq.model.router_spec import Guarantee, RouterSpec
from driftq.model.tombstone import Reason
from driftq.model.topic_config import Durability
from driftq.storage.blocks.block import RowSource
from driftq.storage.blocks.delete_flags import DELETED
from driftq.system.runtime import Pending, Timer

RUN_BYTES_MAX = 1 << 20
"""How many bytes of records are copied in one run; a larger record is copied alone."""


class Rule(NamedTuple):
    """A router spec with its parsed filter."""

    spec: RouterSpec
    match: Match | None

    @classmethod
    def of(cls, spec: RouterSpec) -> "Rule":
        """Parse the filter of a spec."""
        return cls(spec, None if spec.filter is None else parse_match(spec.filter))

    @property
    def exactly_once(self) -> bool:
        """Whether the copies carry a mark."""
        return self.spec.guarantee is Guarantee.EXACTLY_ONCE


class Router:
    """One router: its rules, and how far it has copied."""

    inflow: "Inflow"
    """The inflow of its dest, which contains this router."""

    def __init__(self, number: int, name: str, source: Topic, dest_id: int, created_ts: int, dest_base: int) -> None:
        self.number = number
        self.name = name
        self.source = source
        self.dest_id = dest_id
        self.created_ts = created_ts
        self.dest_base = dest_base
        self.cursor = 0
        self.copied_to = 0
        """The highest source seq that it has ever copied. Above it no copy can exist."""
        self.forwarded = 0
        self.specs: list[tuple[int, Rule]] = []
        """Rules in order, each with the source seq after which it applies."""
        self.known: tuple[int, int, set[int]] | None = None
        """A cache, not part of the state: `op` and earliest seq of dest, and the source seqs whose copies are there."""

    @property
    def spec(self) -> RouterSpec:
        """The spec of the newest rule."""
        return self.specs[-1][1].spec

    def put(self, spec: RouterSpec, after: int) -> None:
        """Add a rule for records after a source seq."""
        self.specs.append((after, Rule.of(spec)))

    def passed(self, seq: int) -> None:
        """Advance the cursor to `seq`, in live operation, and drop rules that no longer apply."""
        self.cursor = max(self.cursor, seq)
        while len(self.specs) > 1 and self.specs[1][0] <= self.cursor:
            del self.specs[0]

    def rule_at(self, seq: int) -> tuple[Rule, int | None]:
        """Return the rule for a source seq, and the last seq it applies to; None if it is the newest rule."""
        specs = self.specs
        for place in range(1, len(specs)):
            if seq <= specs[place][0]:
                return specs[place - 1][1], specs[place][0]
        return specs[-1][1], None


class SourceRun(NamedTuple):
    """Live records of a source with consecutive seqs: rows [first, last) of a block."""

    source: RowSource
    first: int
    last: int

    @property
    def first_seq(self) -> int:
        """The seq of the first record."""
        return self.source.first_seq + self.first

    @property
    def last_seq(self) -> int:
        """The seq of the last record."""
        return self.source.first_seq + self.last - 1


class SourceGap(NamedTuple):
    """Seqs up to `last` without a live record. `lost` of them were lost, not deleted, and are reported to readers."""

    last: int
    lost: int = 0
    deleted: bool = False
    """Whether a record in the gap was deleted by a user."""
    crash: bool = False
    """Whether the gap is a hole that a crash left."""


def look(topic: Topic, cursor: int, upto: int, limit: int) -> SourceRun | SourceGap | Missing | Damaged:
    """Return what follows a cursor, up to `upto` and at most `limit` records. Raise InternalError, like `read_page`."""
    first = cursor + 1
    if first < topic.evict_floor:
        last = min(topic.evict_floor - 1, upto)
        return SourceGap(last, last - cursor)
    hole = topic.holes.at_or_after(first)
    if hole is not None and hole.first <= first:
        last = min(hole.last, upto)
        crash = hole.reason is Reason.CRASH
        return SourceGap(last, 0 if crash else last - cursor, crash=crash)
    stop = upto + 1 if hole is None else min(upto + 1, hole.first)
    part = next(topic.parts(max(first, topic.earliest)), None)
    if part is None or part.first_seq >= stop:
        return SourceGap(stop - 1, deleted=True)
    row = max(first, topic.earliest) - part.first_seq
    dead = topic.dead_of(part)
    live = max(row, 0) if dead is None else dead.first_live(max(row, 0))
    if part.first_seq + live > first:
        return SourceGap(min(part.first_seq + live, stop) - 1, deleted=True)
    end = min(part.count, live + limit, stop - part.first_seq)
    if dead is not None:
        gone = dead.flags.find(DELETED, live, end)
        end = gone if gone >= 0 else end
    source = rows_nowait(topic, part, [])
    if isinstance(source, Missing | Damaged):
        return source
    weights = source.weights(live, end)
    fit = bisect_right(weights, weights[0] + RUN_BYTES_MAX) - 1
    return SourceRun(source, live, live + max(1, min(fit, end - live)))


class Inflow:
    """The routers of one dest, with their common source."""

    def __init__(self, number: int, source: Topic, dest_id: int, base: int) -> None:
        self.base = base
        """The head of dest when the inflow was created; all its copies are above it."""
        self.number = number
        """The number of its first router. Of two inflows of a dest, the one with the lower number ended first."""
        self.source = source
        self.dest_id = dest_id
        self.routers: list[Router] = []
        """The routers, ordered by number."""
        # State of live operation, not part of the durable state:
        self.queued = False
        self.busy = False
        self.frozen = 0
        """How many deletions of its routers are being logged. Until they are, the cursors must not move."""
        self.planned: dict[Router, int] | None = None
        """The cursors after the pending copies or mark are committed."""
        self.timer: Timer | None = None
        self.retry_ms = 0
        """While the inflow is blocked: the delay after the next attempt, in milliseconds
        (`features/router/retry_backoff`).
        """
        self.held: object = None
        """A fetched block, kept in memory until it is read."""
        self.waiters: list[tuple[int, Pending[None]]] = []
        """Readers that wait until the inflow has passed a source seq."""

    @property
    def low(self) -> int:
        """The lowest cursor of its routers."""
        return min(router.cursor for router in self.routers)

    def logs_copies(self, dest: Topic) -> bool:
        """Whether copies are logged like writes, because the log of the source may not keep what dest promises."""
        if self.source.durability is Durability.EPHEMERAL:
            return dest.durability is not Durability.EPHEMERAL
        return self.source.durability is Durability.MEMORY and dest.keeps_head

    def heading(self, router: Router) -> int:
        """Return the cursor of a router after the pending copies or mark are committed."""
        return max(router.cursor, (self.planned or {}).get(router, 0))

    def border(self, low: int, upto: int, hops: Hops | None) -> tuple[int, int, list[tuple[Router, Rule]]]:
        """Return up to which seq records after `low` are treated alike, their hops, and the routers that take them."""
        seq = low + 1
        made = 0
        if hops is not None:
            made, same_to = hops.at(seq)
            upto = upto if same_to is None else min(upto, same_to)
        active: list[tuple[Router, Rule]] = []
        for router in self.routers:
            if router.cursor >= seq:
                upto = min(upto, router.cursor)
                continue
            rule, holds_to = router.rule_at(seq)
            upto = upto if holds_to is None else min(upto, holds_to)
            active.append((router, rule))
        return upto, made, active
