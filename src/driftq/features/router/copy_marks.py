"""Marks in the log that record where the copies in a destination are, and when they were made.

`Stamps` writes a mark within 1 s of the copies in a destination with a TTL, without a sync of its own. Without it,
replay would give those copies the time of a later frame, and a record that a reader saw expire could come back.

The rest is about marks that the log does not have yet. Two events leave such a mark to be logged, and both have
happened in memory already:

- A start has raised the head of a dest, or its routers have passed a hole (`features/router/rederivation`).
- A direct write to a `disk` dest was shown, and then its log write failed (`engine/write/lost_writes`). Replay sees its
  seqs as a hole, and no copy may be placed there.

    unlogged → under way → logged
        ▲           └─ its write fails ─┘ (to unlogged)

Invariants
- While a mark is unlogged, it is queued before the next frame of any topic (`ChangeLog.before_frames`). A failed write
  fails everything that was queued after it in its shard, so in that shard no frame is in the log without the mark.
- While a mark is unlogged or under way, no copy is placed in any dest.
- The marks of one shard are logged in the order of their events.
- To replay a mark over a checkpoint that has its event changes nothing: head and cursors are at or above it already.
"""

from typing import NamedTuple, Protocol

from driftq.engine.engine import Engine
from driftq.engine.state.control_frames import encode_body
from driftq.engine.state.topic import Topic
from driftq.engine.write.change_log import ChangeLog
from driftq.errors import DriftQError
from driftq.features.router.destination import Inflow
from driftq.features.router.router_frames import ROUTER_MARK, RouterMarkBody
from driftq.features.router.router_table import RouterTable
from driftq.model.topic_config import Durability
from driftq.system.runtime import Pending, Runtime

STAMP_MS = 1000


class Stamps:
    """Writes the time marks of destinations with a TTL."""

    def __init__(self, table: RouterTable, engine: Engine, runtime: Runtime) -> None:
        self._table = table
        self._engine = engine
        self._runtime = runtime
        self._due: set[int] = set()
        self.closed = False

    def copied(self, dest: Topic, inflow: Inflow) -> None:
        """Schedule a mark, because copies were placed in a destination."""
        if dest.config.ttl_ms and dest.id not in self._due:
            self._due.add(dest.id)
            self._runtime.later(STAMP_MS, lambda: self._stamp(dest, inflow))

    def _stamp(self, dest: Topic, inflow: Inflow) -> None:
        self._due.discard(dest.id)
        if self.closed or dest.gone or not inflow.routers or inflow.frozen:
            return
        try:
            cursors = [(router.number, inflow.heading(router)) for router in inflow.routers]
            body = encode_body(RouterMarkBody(dest.in_flight.next_seq - 1, cursors))
            self._engine.log(dest, ROUTER_MARK, body, self._table.feature, sync=False)
        except DriftQError:
            self.copied(dest, inflow)  # the log accepts nothing now; try again later
        except Exception:
            self.copied(dest, inflow)
            raise


class _Mark(NamedTuple):
    dest: Topic
    body: RouterMarkBody


class _Settled(Protocol):
    def __call__(self, *, logged: bool) -> None: ...


class UnloggedMarks:
    """The unlogged marks of all destinations. True while there is one."""

    def __init__(self, table: RouterTable, change_log: ChangeLog, settled: "_Settled") -> None:
        self._table = table
        self._change_log = change_log
        self._settled = settled
        """Called when no mark is under way any more, with whether every mark is logged."""
        self._marks: list[_Mark] = []
        self._lost: dict[Topic, int] = {}
        """Destinations with a lost direct write that has no mark yet, and the first seq of that write."""
        self._under_way = 0

    def __bool__(self) -> bool:
        return bool(self._marks or self._lost or self._under_way)

    def add(self, dest: Topic, body: RouterMarkBody) -> None:
        """Add a mark that a start has left to be logged."""
        self._marks.append(_Mark(dest, body))
        self._change_log.before_frames = self.log

    def lost(self, topic: Topic, first: int) -> None:
        """Record that direct writes from this seq on were shown and are not in the log."""
        if topic.durability is Durability.DISK and self._table.inflow(topic.id) is not None:
            self._lost[topic] = min(first, self._lost.get(topic, first))
            self._change_log.before_frames = self.log

    def hurry(self) -> bool:
        """Queue the marks in the next turn. Return False if none is on its way because the log has stopped."""
        if self._change_log.before_frames is not None:
            self._change_log.schedule()
            return True
        return self._under_way > 0

    def log(self) -> None:
        """Queue every mark that is not under way."""
        self._change_log.before_frames = None
        for dest, first in self._lost.items():
            self._marks.append(_Mark(dest, self._mark_of_loss(dest, first)))
        self._lost.clear()
        marks, self._marks = self._marks, []
        for mark in marks:
            if not mark.dest.gone:
                self._log(mark)

    def _mark_of_loss(self, dest: Topic, first: int) -> RouterMarkBody:
        """Return the mark that turns all shown seqs from `first` on into a hole, because none of them is in the log."""
        inflow = self._table.inflow(dest.id)
        cursors = [] if inflow is None else [(router.number, router.cursor) for router in inflow.routers]
        return RouterMarkBody(first - 1, cursors, raised=dest.head)

    def _log(self, mark: _Mark) -> None:
        dest, feature = mark.dest, self._table.feature
        body = encode_body(mark.body)

        def apply(op: int, ts: int) -> None:
            dest.op = op
            dest.changed = True
            feature.apply(ROUTER_MARK, dest, ts, body)

        def settle(done: Pending[None]) -> None:
            self._under_way -= 1
            if done.error is not None and not dest.gone:
                self._marks.append(mark)
                if self._change_log.shard_of(dest).stopped is None:
                    self._change_log.before_frames = self.log
            if not self._under_way:
                self._settled(logged=not self)

        self._under_way += 1
        logged = self._change_log.control(dest, ROUTER_MARK, body, apply, sync=dest.keeps_head, checks_room=False)
        logged.then(settle)
