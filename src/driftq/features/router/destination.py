"""Routers, and what they have in common where they end: an inflow, all routers of one dest. They have one source.

An inflow copies in one order, live and in replay: by source seq, and one record in the order of the routers' numbers.
So the seqs of copies follow from the source's log, the routers, and where other writes to dest stand between them.

Invariants
- `cursor` is the last source seq a router has passed: copied, or consumed without a copy. It never decreases.
- What a PUT changes holds for source records behind the one that was last when it was committed (`specs`).
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
from driftq.storage.blocks.frame import DELETED
from driftq.system.runtime import Pending, Timer

RUN_BYTES_MAX = 1 << 20
"""So many bytes of records are copied at a time, or one record."""


class Rule(NamedTuple):
    """A spec, ready for use."""

    spec: RouterSpec
    match: Match | None

    @classmethod
    def of(cls, spec: RouterSpec) -> "Rule":
        """With its filter parsed."""
        return cls(spec, None if spec.filter is None else parse_match(spec.filter))

    @property
    def exactly_once(self) -> bool:
        """Do its copies carry a mark?"""
        return self.spec.guarantee is Guarantee.EXACTLY_ONCE


class Router:
    """One router."""

    inflow: "Inflow"
    """All routers of its dest, itself among them."""

    def __init__(self, number: int, name: str, source: Topic, dest_id: int, created_ts: int, dest_base: int) -> None:
        self.number = number
        self.name = name
        self.source = source
        self.dest_id = dest_id
        self.created_ts = created_ts
        self.dest_base = dest_base
        self.cursor = 0
        self.copied_to = 0
        """The highest source seq of which it has ever made a copy: only at or below it can a copy be there already."""
        self.forwarded = 0
        self.specs: list[tuple[int, Rule]] = []
        """Rules, each with the source seq behind which it holds, in order."""
        self.known: tuple[int, int, set[int]] | None = None
        """Not part of the state: copies that are there, as dest was at an `op` and an earliest seq."""

    @property
    def spec(self) -> RouterSpec:
        """The newest rule."""
        return self.specs[-1][1].spec

    def put(self, spec: RouterSpec, after: int) -> None:
        """Another rule, for what comes behind a source seq."""
        self.specs.append((after, Rule.of(spec)))

    def passed(self, seq: int) -> None:
        """Live: everything up to a source seq is done with, the rules that held for it as well."""
        self.cursor = max(self.cursor, seq)
        while len(self.specs) > 1 and self.specs[1][0] <= self.cursor:
            del self.specs[0]

    def rule_at(self, seq: int) -> tuple[Rule, int | None]:
        """The rule for a source seq, and the last seq it holds for; None when it is the newest."""
        specs = self.specs
        for place in range(1, len(specs)):
            if seq <= specs[place][0]:
                return specs[place - 1][1], specs[place][0]
        return specs[-1][1], None


class SourceRun(NamedTuple):
    """Live records of a source, seqs without a gap: rows [first, last) of a block."""

    source: RowSource
    first: int
    last: int

    @property
    def first_seq(self) -> int:
        """The seq of the first."""
        return self.source.first_seq + self.first

    @property
    def last_seq(self) -> int:
        """The seq of the last."""
        return self.source.first_seq + self.last - 1


class SourceGap(NamedTuple):
    """Seqs up to `last` that have no live record; so many of them were lost unasked, and are told of."""

    last: int
    lost: int = 0
    deleted: bool = False
    """Was there a record that somebody deleted?"""
    crash: bool = False
    """Is it a hole that a crash left?"""


def look(topic: Topic, cursor: int, upto: int, limit: int) -> SourceRun | SourceGap | Missing | Damaged:
    """What is behind a cursor, at most up to a seq and so many records. Raises InternalError, as `read_page` does."""
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
    """The routers of one dest."""

    def __init__(self, number: int, source: Topic, dest_id: int, base: int) -> None:
        self.base = base
        """The head of dest when it began: its copies are behind it."""
        self.number = number
        """Of its first router. Of two inflows of a dest that with the lower number had ended when the other began."""
        self.source = source
        self.dest_id = dest_id
        self.routers: list[Router] = []
        """By number."""
        # Live, under way:
        self.queued = False
        self.busy = False
        self.frozen = 0
        """Deletions of its routers under way: they go no further than their frames say."""
        self.planned: dict[Router, int] | None = None
        """Where cursors will stand when what is under way is through."""
        self.timer: Timer | None = None
        self.retry_ms = 0
        """While it is blocked: after how long the next try but one comes (`features/router/retry_backoff`)."""
        self.held: object = None
        """A block that was fetched, until it is read."""
        self.waiters: list[tuple[int, Pending[None]]] = []
        """Who waits for it to pass a source seq."""

    @property
    def low(self) -> int:
        """What the router has passed that is furthest back."""
        return min(router.cursor for router in self.routers)

    def logs_copies(self, dest: Topic) -> bool:
        """Whether copies are logged as writes are, because the log of the source may not have what dest promises."""
        if self.source.durability is Durability.EPHEMERAL:
            return dest.durability is not Durability.EPHEMERAL
        return self.source.durability is Durability.MEMORY and dest.keeps_head

    def heading(self, router: Router) -> int:
        """Where a router will stand when what is under way is through."""
        return max(router.cursor, (self.planned or {}).get(router, 0))

    def border(self, low: int, upto: int, hops: Hops | None) -> tuple[int, int, list[tuple[Router, Rule]]]:
        """Up to where records behind `low` are treated alike: that seq, their hops, and whom they are for."""
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
