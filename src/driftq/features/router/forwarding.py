"""Forwarding: how routers copy in live operation (http-v0 §11.3, §11.4).

An inflow is at any moment one of

    idle      it has passed the head of its source
    ready     there are records to pass, and a turn will pass them
    busy      it waits: for the commit of copies or of a mark, for a block, or for a sync of the source
    blocked   dest has no room for the next copy, or the log accepts nothing now; tried again by
    `features/router/retry_backoff`, and by readers

and takes one step at a time: it copies some records, or passes a gap. Invariants
- A cursor moves in the same turn that makes its copies visible, so a checkpoint has both or neither.
- A gap is logged as a mark before it is passed, unless replay comes to the same result without the mark.
- No copy is placed while a mark of an earlier event is not logged (`features/router/copy_marks`).
- A dest of class `fsync` gets only copies of records that are on stable storage.
- A writer to the source never waits for copies. If a cap or a delete is about to remove records that a router has not
  passed, they are copied first, in the same turn, if dest accepts them.
"""

from collections import Counter
from enum import Enum, auto

from driftq.engine.engine import Engine
from driftq.engine.load.priority import Bands, effective_priority
from driftq.engine.read.topic_page import Damaged, Missing
from driftq.engine.state.control_frames import encode_body
from driftq.engine.state.topic import RemovalCause, Topic
from driftq.engine.write.copier import CopyNote
from driftq.errors import DriftQError
from driftq.features.router.copies import CopyBatch, copied_seqs, copies_of, first_too_large
from driftq.features.router.copy_marks import Stamps, UnloggedMarks
from driftq.features.router.destination import Inflow, Router, Rule, SourceGap, SourceRun, look
from driftq.features.router.retry_backoff import Backoff
from driftq.features.router.router_frames import ROUTER_MARK, RouterMarkBody
from driftq.features.router.router_table import RouterTable
from driftq.model.limits import BLOCK_RECORDS_MAX
from driftq.model.topic_config import Durability
from driftq.storage.wal.group_commit import Submission
from driftq.system.runtime import Pending, Runtime

TURN_RECORDS = BLOCK_RECORDS_MAX
"""How many source records a router passes in one turn at most."""
_SOON_MS = 1
_STEPS_PER_TURN = 16
_STEPS_PER_READ = 64
_DEPTH_MAX = 8
_PASSING = (Durability.EPHEMERAL, Durability.MEMORY)


class StepResult(Enum):
    """The result of one step of an inflow."""

    IDLE = auto()
    MORE = auto()
    BUSY = auto()
    BLOCKED = auto()


class Forwarder:
    """Runs the inflows of a running engine."""

    def __init__(self, table: RouterTable, engine: Engine, runtime: Runtime) -> None:
        self._table = table
        self._engine = engine
        self._runtime = runtime
        self._ready: Bands[Inflow] = Bands()
        self._scheduled = False
        self._closed = False
        self._changing: set[int] = set()
        """Ids of topics in the middle of a change: nothing is copied into them until it is complete."""
        self._syncing: set[int] = set()
        self._stamps = Stamps(table, engine, runtime)
        self._backoff = Backoff(table, engine, runtime, self.wake)
        self.unlogged = UnloggedMarks(table, engine.change_log, self._marks_settled)
        engine.listeners.append(self._published)

    def close(self) -> None:
        """Stop all copying and cancel the retry timers."""
        self._closed = self._stamps.closed = self._backoff.closed = True
        for inflow in self._table.all_inflows():
            self._backoff.cancel(inflow)

    def _published(self, topic: Topic) -> None:
        for inflow in self._table.out.get(topic.id, ()):
            if not inflow.retry_ms:
                self.wake(inflow)

    def wake(self, inflow: Inflow) -> None:
        """Schedule a turn of an inflow, because there may be records to copy."""
        if inflow.queued or self._closed:
            return
        inflow.queued = True
        dest = self._table.topic(inflow.dest_id)
        now = self._engine.time.running()
        self._ready.add(inflow, 0 if dest is None else effective_priority(dest.config, dest.consumed_at, now), now)
        if not self._scheduled:
            self._scheduled = True
            self._runtime.soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        now = self._engine.time.running()
        for _ in range(_STEPS_PER_TURN):
            if not len(self._ready):
                return
            inflow = self._ready.take(now)
            inflow.queued = False
            before = self._engine.blocks.usage.payload
            if self._advance(inflow) is StepResult.MORE and inflow.routers and inflow.low < inflow.source.head:
                self.wake(inflow)
            self._ready.spend(abs(self._engine.blocks.usage.payload - before))
        if len(self._ready) and not self._scheduled:
            self._scheduled = True
            self._runtime.soon(self._turn)

    # Reading one's own writes

    def bring(self, topic: Topic) -> Pending[None] | None:
        """Advance the routers of a topic to the head of their source. Return what a reader has to wait for, or None."""
        inflow = self._table.inflow(topic.id)
        if inflow is None or self._closed or (not inflow.busy and inflow.low >= inflow.source.head):
            return None
        target = inflow.source.head
        outcome = StepResult.MORE
        for _ in range(_STEPS_PER_READ):
            outcome = self._advance(inflow)
            if outcome is not StepResult.MORE:
                break
        if outcome in (StepResult.IDLE, StepResult.BLOCKED) or not inflow.routers or inflow.low >= target:
            return None
        waiting: Pending[None] = Pending()
        inflow.waiters.append((target, waiting))
        self.wake(inflow)
        return waiting

    def guard(self, topic: Topic, going: RemovalCause) -> None:
        """Copy records of a source, if possible, before a cap or a delete removes them; a TTL does not wait."""
        if (
            going is RemovalCause.BY_TIME
            or self._closed
            or len(self._changing) >= _DEPTH_MAX
            or topic.id in self._changing
        ):
            return
        self._changing.add(topic.id)
        try:
            for inflow in list(self._table.out.get(topic.id, ())):
                while inflow.routers and self._advance(inflow) is StepResult.MORE:
                    pass
        finally:
            self._changing.discard(topic.id)

    # One step

    def _advance(self, inflow: Inflow) -> StepResult:
        """Make one step, and schedule what its result requires."""
        try:
            outcome = self._step(inflow)
        except DriftQError:
            outcome = StepResult.BLOCKED
        except Exception:
            self._backoff.block(inflow)  # the retry also runs the queued inflows
            raise
        if outcome is StepResult.BLOCKED:
            self._backoff.block(inflow)
        elif outcome is not StepResult.BUSY:
            self._backoff.went_on(inflow)
        if outcome is not StepResult.BUSY:
            self._tell(inflow, everybody=outcome is StepResult.BLOCKED)
        return outcome

    def _tell(self, inflow: Inflow, *, everybody: bool) -> None:
        if not inflow.waiters:
            return
        low = inflow.low if inflow.routers else inflow.source.head
        waiters, inflow.waiters = inflow.waiters, []
        for target, waiting in waiters:
            if everybody or target <= low:
                waiting.resolve(None)
            else:
                inflow.waiters.append((target, waiting))

    def ended(self, inflow: Inflow) -> None:
        """Release the readers of an inflow that has lost its last router."""
        self._backoff.cancel(inflow)
        self._tell(inflow, everybody=True)

    def _step(self, inflow: Inflow) -> StepResult:
        source, dest = inflow.source, self._table.topic(inflow.dest_id)
        if not inflow.routers or inflow.low >= source.head or dest is None or source.gone:
            return StepResult.IDLE
        if inflow.busy or inflow.frozen:
            return StepResult.BUSY
        if self.unlogged:
            return StepResult.BUSY if self.unlogged.hurry() else StepResult.BLOCKED
        if dest.in_flight.held or dest.id in self._changing:
            self._backoff.later(inflow, _SOON_MS)
            return StepResult.BUSY
        if dest.durability is not Durability.EPHEMERAL:
            self._engine.change_log.check_append(dest)
        source.expire(self._engine.time.now())
        low, upto = inflow.low, source.head
        # Records that an `fsync` topic shows are on stable storage, even before `synced_seq` was updated.
        synced = upto if source.durability is Durability.FSYNC else self._engine.synced_seq(source)
        if dest.durability is Durability.FSYNC and source.durability not in _PASSING:
            upto = min(upto, synced)
            if low >= upto:
                return self._ask_sync(inflow)
        upto, made, active = inflow.border(low, upto, self._table.hops.get(source.id))
        if any(rule.exactly_once and low < router.copied_to for router, rule in active):
            if self._pass_copied(inflow, dest, active):
                return StepResult.MORE
            upto = low + 1
        found = look(source, low, upto, TURN_RECORDS)
        return self._proceed(inflow, dest, active, found, made, synced)

    def _pass_copied(self, inflow: Inflow, dest: Topic, active: list[tuple[Router, Rule]]) -> bool:
        """Pass the next record if an `exactly_once` router, whose cursor has gone back, has copied it already."""
        for router, rule in active:
            seq = router.cursor + 1
            if rule.exactly_once and seq <= router.copied_to and seq in copied_seqs(dest, router):
                self._pass(inflow, {router: seq}, {router: 1})
                return True
        return False

    def _proceed(
        self,
        inflow: Inflow,
        dest: Topic,
        active: list[tuple[Router, Rule]],
        found: SourceRun | SourceGap | Missing | Damaged,
        made: int,
        synced: int,
    ) -> StepResult:
        if isinstance(found, SourceRun):
            return self._copy(inflow, dest, copies_of(found, inflow.source, active, made), active, synced)
        if isinstance(found, SourceGap):
            return self._pass_gap(inflow, dest, active, found)
        return self._fetch(inflow, found)

    def _copy(
        self, inflow: Inflow, dest: Topic, batch: CopyBatch, active: list[tuple[Router, Rule]], synced: int
    ) -> StepResult:
        if not batch.count:
            self._pass(inflow, {router: batch.last_seq for router, _ in active}, {})
            return StepResult.MORE
        dest.expire(self._engine.time.now())
        sizes = batch.sizes()
        fit = self._engine.copier.room(dest, sizes)
        large = first_too_large(batch, sizes, self._engine.settings.limits.record_bytes_max)
        fit = fit if large is None else min(fit, large)
        if not fit:
            return StepResult.BLOCKED
        cursors = batch.cursors_after(fit, active)
        copied = Counter(batch.owners[:fit])
        first = dest.in_flight.next_seq
        note = None
        if inflow.logs_copies(dest):
            mark = RouterMarkBody(
                first + fit - 1,
                [(router.number, cursor) for router, cursor in cursors.items()],
                forwarded=[(router.number, count) for router, count in copied.items()],
            )
            note = CopyNote(ROUTER_MARK, encode_body(mark))
        failed: list[DriftQError] = []
        later: list[bool] = []

        def done(error: DriftQError | None) -> None:
            inflow.busy = False
            inflow.planned = None
            if error is not None:
                failed.append(error)
                self._backoff.block(inflow)
                self._tell(inflow, everybody=True)
                return
            for router in copied:
                router.copied_to = max(router.copied_to, batch.seqs[fit - 1])
            self._table.note_hops(dest, first, first + fit - 1, batch.hops)
            self._pass(inflow, cursors, copied)
            self._stamps.copied(dest, inflow)
            if later:
                self.wake(inflow)

        inflow.busy = True
        inflow.planned = cursors
        self._engine.copier.place(
            dest, batch.rows(0, fit), done, note=note, lasting=batch.seqs[fit - 1] <= synced and note is None
        )
        if failed:
            return StepResult.BLOCKED
        later.append(True)
        return StepResult.BUSY if inflow.busy else StepResult.MORE

    def _pass(
        self, inflow: Inflow, cursors: dict[Router, int], forwarded: "dict[Router, int] | Counter[Router]"
    ) -> None:
        for router, count in forwarded.items():
            router.forwarded += count
        for router, cursor in cursors.items():
            router.passed(cursor)
        self._backoff.went_on(inflow)
        if inflow.routers:
            self._table.forget_hops(inflow.source)

    def _pass_gap(self, inflow: Inflow, dest: Topic, active: list[tuple[Router, Rule]], gap: SourceGap) -> StepResult:
        """Pass a gap. Unless replay finds the same gap by itself, log a mark first."""
        source = inflow.source
        rederived = source.durability is not Durability.EPHEMERAL and dest.durability is not Durability.EPHEMERAL
        # Records that a crash took from a source were not synced, so they were never copied into an `fsync` dest.
        marked = gap.deleted or (gap.crash and dest.durability is not Durability.FSYNC)
        if not gap.lost and not (marked and rederived):
            self._pass(inflow, {router: gap.last for router, _ in active}, {})
            return StepResult.MORE
        slots = gap.lost * len(active)
        body = RouterMarkBody(
            dest.in_flight.next_seq - 1,
            [(router.number, gap.last) for router, _ in active],
            slots,
            [(router.number, gap.lost) for router, _ in active] if gap.lost else [],
        )
        self._log_mark(inflow, dest, body)
        return StepResult.BUSY

    def _log_mark(self, inflow: Inflow, dest: Topic, body: RouterMarkBody) -> None:
        """Log a mark; the inflow continues after its commit. If this raises, nothing has changed."""
        logged = self._engine.log(dest, ROUTER_MARK, encode_body(body), self._table.feature, sync=dest.keeps_head)
        dest.in_flight.next_seq += body.slots
        inflow.busy = True
        inflow.planned = {
            self._table.by_number[number]: cursor for number, cursor in body.cursors if number in self._table.by_number
        }

        def settle(done: Pending[None]) -> None:
            inflow.busy = False
            inflow.planned = None
            if done.error is not None:
                self._backoff.block(inflow)
                self._tell(inflow, everybody=True)
                return
            if body.slots:
                self._engine.publish(dest)
            self._tell(inflow, everybody=False)
            self.wake(inflow)

        logged.then(settle)

    def _marks_settled(self, *, logged: bool) -> None:
        """Wake every inflow; if a mark is still unlogged, try again later instead."""
        for inflow in self._table.all_inflows():
            if logged:
                self.wake(inflow)
            else:
                self._backoff.block(inflow)
                self._tell(inflow, everybody=True)

    # Waiting

    def _fetch(self, inflow: Inflow, found: Missing | Damaged) -> StepResult:
        inflow.busy = True
        fetch = self._engine.fetching.wait_for(inflow.source, found)
        inflow.held = fetch

        def settle(done: Pending[None]) -> None:
            inflow.busy = False
            if done.error is not None:
                inflow.held = None
                self._backoff.block(inflow)
                self._tell(inflow, everybody=True)
            else:
                self._advance_on(inflow)
                inflow.held = None

        fetch.then(settle)
        return StepResult.BUSY if inflow.busy else StepResult.MORE

    def _advance_on(self, inflow: Inflow) -> None:
        if inflow.routers and not self._closed and self._advance(inflow) is StepResult.MORE:
            self.wake(inflow)

    def _ask_sync(self, inflow: Inflow) -> StepResult:
        """Request a sync of the source at once, because dest accepts only synced records."""
        source = inflow.source
        if source.id in self._syncing:
            return StepResult.BUSY
        shard = self._engine.change_log.shard_of(source)
        shard.check_room()
        self._syncing.add(source.id)

        def done(_: Submission, error: DriftQError | None) -> None:
            self._syncing.discard(source.id)
            for waiting in self._table.out.get(source.id, ()):
                if error is None and waiting.low < self._engine.synced_seq(source):
                    self.wake(waiting)
                else:
                    self._backoff.block(waiting)
                    self._tell(waiting, everybody=True)

        shard.sync(done)
        self._engine.change_log.schedule()
        return StepResult.BUSY
