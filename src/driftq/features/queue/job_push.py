"""Jobs pushed to a connection: it holds at most `limit` jobs, and gets the next when it has room (http-v0 §14.9).

    open → waiting → in line → asking → waiting …→ closed

A `Push` claims jobs whenever it may hold more, its peer reads, and a job is ready. It takes its turn among all streams
by the priority of its topic. It checks again when the topic changes, when a lease or a delay runs out, and when its
peer has read. Its claims are like those of any worker, so they take part in cohorts. Under pressure, topics of
negative priority are not pushed; they can still be polled.

The lease table maintains `held`: a job leaves it when it is acked, given back or deleted, or when its lease expires.
When the connection closes, the jobs that it holds are given back at once.

While the records of the next jobs cannot be read, the connection gets one error and stays open. The push tries again
until it has delivered a job or found none.
"""

from collections.abc import Callable
from typing import Protocol

from driftq.engine.engine import Engine
from driftq.engine.load.pressure import Level
from driftq.engine.load.priority import effective_priority
from driftq.engine.state.block_cache import RETRY_AFTER_MS
from driftq.engine.state.topic import Topic
from driftq.errors import SegmentUnavailableError
from driftq.features.queue.backlog import Backlog, ready
from driftq.features.queue.claims import Claimer, ClaimResult
from driftq.features.queue.job_settlement import JobSettler
from driftq.features.queue.lease_table import LeaseTable
from driftq.system.runtime import Pending, Runtime, Timer

_AT_ONCE = 32
"""How many jobs are rendered at most before the peer's buffer is checked again."""
_RETRY_MS = 250


class Push:
    """The jobs of one connection.

    `deliver` sends jobs to the connection, `has_room` is whether it accepts more, `unavailable` is called when jobs
    cannot be read now, and `ended` when the queue is gone.
    """

    def __init__(
        self,
        parts: "Pusher",
        topic: Topic,
        node: str,
        limit: int,
        lease_ms: int | None,
        *,
        deliver: Callable[[ClaimResult], None],
        has_room: Callable[[], bool],
        unavailable: Callable[[SegmentUnavailableError], None],
        ended: Callable[[], None],
    ) -> None:
        self.held: set[int] = set()
        self._parts = parts
        self._topic = topic
        self._node = node
        self._limit = limit
        self._lease_ms = lease_ms
        self._deliver = deliver
        self._has_room = has_room
        self._unavailable = unavailable
        self._ended = ended
        self._is_unavailable = False
        self._in_line = False
        self._asking = False
        self._closed = False
        self._timer: Timer | None = None
        parts.engine.wakeups.add(topic.name, self.wake)
        self.wake()

    def wake(self) -> None:
        """Check for jobs, because something may have changed, and request a turn if there are any."""
        topic, parts = self._topic, self._parts
        if self._closed:
            return
        if topic.gone:
            self.close()
            self._ended()
            return
        if self._asking or self._in_line:
            return
        wanted = self._wanted()
        if wanted is None:
            return
        self._in_line = True
        parts.turns.ask(self, parts.priority(topic))

    def step(self) -> int:
        """Claim jobs in this turn. Return the number of bytes received so far."""
        self._in_line = False
        if self._closed or self._topic.gone:
            self.wake()
            return 0
        wanted = self._wanted()
        if wanted is None:
            return 0
        self._asking = True
        try:
            claim = self._parts.claimer.claim(self._topic, self._node, wanted, self._lease_ms, self.held)
        except Exception:
            self._asking = False
            self._look_later(_RETRY_MS)
            raise
        claim.then(self._answered)
        return sum(map(len, claim.result().jobs)) if claim.settled and claim.error is None else 0

    def _wanted(self) -> int | None:
        """Return how many jobs to claim now, or None. After None or a failure, `wake` is called again later."""
        try:
            return self._look()
        except Exception:
            self._look_later(_RETRY_MS)
            raise

    def _look(self) -> int | None:
        topic, parts = self._topic, self._parts
        table = parts.backlog.lease_log.table(topic)
        topic.expire(parts.engine.time.now())
        parts.backlog.refresh(topic, table)
        parts.backlog.settle_debts(topic, table)
        wanted = self._limit - len(self.held)
        if wanted <= 0 or not self._has_room() or ready(topic, table) <= 0:
            self._look_again(table)
            return None
        if parts.engine.pressure.level >= Level.PRESSED and parts.priority(topic) < 0:
            self._look_again(table, retry=True)
            return None
        return wanted if topic.config.claim_jitter_ms else min(wanted, _AT_ONCE)

    def _answered(self, done: Pending[ClaimResult]) -> None:
        self._asking = False
        if self._closed:
            self._release()
            return
        error = done.error
        if isinstance(error, SegmentUnavailableError):
            self._look_later(RETRY_AFTER_MS)
            if not self._is_unavailable:
                self._is_unavailable = True
                self._unavailable(error)
            return
        self._is_unavailable = self._is_unavailable and error is not None
        if error is not None or not done.result().seqs:
            self._look_again(self._parts.backlog.lease_log.table(self._topic), retry=error is not None)
            return
        try:
            self._deliver(done.result())
        finally:
            self._parts.runtime.soon(self.wake)

    def _look_again(self, table: LeaseTable, *, retry: bool = False) -> None:
        """Wake up when the next lease or delay runs out; with `retry`, after `_RETRY_MS` ms."""
        due = table.next_due()
        if due is None or retry:
            self._look_later(_RETRY_MS if retry else None)
        else:
            self._look_later(max(1, due - self._parts.engine.time.running()))

    def _look_later(self, delay_ms: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if delay_ms is None else self._parts.runtime.later(delay_ms, self.wake)

    def close(self) -> None:
        """Stop, because the connection closed. The jobs that it holds are given back."""
        if self._closed:
            return
        self._closed = True
        self._parts.engine.wakeups.discard(self._topic.name, self.wake)
        if self._timer is not None:
            self._timer.cancel()
        self._release()

    def _release(self) -> None:
        if self.held and not self._topic.gone:
            self._parts.settler.release(self._topic, sorted(self.held))


class PushTurns(Protocol):
    """The queue in which all streams wait for their turns."""

    def ask(self, one: Push, priority: int) -> None:
        """Schedule one call of `one.step`."""


class Pusher:
    """The parts that every `Push` works with."""

    def __init__(
        self,
        engine: Engine,
        runtime: Runtime,
        turns: PushTurns,
        backlog: Backlog,
        claimer: Claimer,
        settler: JobSettler,
    ) -> None:
        self.engine = engine
        self.runtime = runtime
        self.turns = turns
        self.backlog = backlog
        self.claimer = claimer
        self.settler = settler

    def priority(self, topic: Topic) -> int:
        """Return the priority of a topic's pushes."""
        return effective_priority(topic.config, topic.consumed_at, self.engine.time.running())
