"""Claims that wait for jobs (http-v0 §22.7).

    began → asking → answered
              ↑↓
           waiting → ended: without jobs

A claim that finds no ready job waits. It asks again when the topic changes, or when a lease or a delay runs out. A
claim ends once: with jobs, with an error, or with neither when its time is over, its node leaves, or its caller
disconnects.

Invariants: a waiting claim holds no job. Jobs granted to a caller that has disconnected are given back at once. Claims
ask in the order in which they began to wait, because `Wakeups` calls waiters in the order in which they were added.
"""

from driftq.engine.engine import Engine
from driftq.engine.state.topic import Topic
from driftq.features.queue.backlog import Backlog, ready
from driftq.features.queue.claims import Claimer, ClaimResult
from driftq.features.queue.job_settlement import JobSettler
from driftq.system.runtime import Pending, Runtime, Timer

_RETRY_MS = 250


class Waits:
    """All waiting claims, by topic and node."""

    def __init__(
        self, engine: Engine, runtime: Runtime, backlog: Backlog, claimer: Claimer, settler: JobSettler
    ) -> None:
        self.engine = engine
        self.runtime = runtime
        self.backlog = backlog
        self.claimer = claimer
        self.settler = settler
        self._waiting: dict[tuple[str, str], dict[WaitingClaim, None]] = {}

    def add(self, claim: "WaitingClaim") -> None:
        """Register a claim, so that it is woken and can be found by its node."""
        self.engine.wakeups.add(claim.topic.name, claim.look)
        self._waiting.setdefault((claim.topic.name, claim.node), {})[claim] = None

    def discard(self, claim: "WaitingClaim") -> None:
        """Remove a claim that has ended."""
        place = claim.topic.name, claim.node
        self.engine.wakeups.discard(claim.topic.name, claim.look)
        claims = self._waiting.get(place)
        if claims is not None:
            claims.pop(claim, None)
            if not claims:
                del self._waiting[place]

    def leave(self, name: str, node: str) -> int:
        """End the waiting claims of a node without jobs. Return how many there were."""
        claims = list(self._waiting.get((name, node), ()))
        for claim in claims:
            claim.end()
        return len(claims)


class WaitingClaim:
    """One claim that may wait; `answer` settles when it ends."""

    def __init__(self, waits: Waits, topic: Topic, node: str, limit: int, lease_ms: int | None, wait_ms: int) -> None:
        self.topic = topic
        self.node = node
        self.answer: Pending[ClaimResult] = Pending()
        self._waits = waits
        self._limit = limit
        self._lease_ms = lease_ms
        self._asking = False
        self._ending = False
        self._hung_up = False
        self._timer: Timer | None = None
        self._deadline: Timer | None = None
        self._ask()
        if not self.answer.settled:
            waits.add(self)
            self._deadline = waits.runtime.later(wait_ms, self.end)

    def look(self) -> None:
        """Ask again if a job is ready, because something may have changed."""
        topic, backlog = self.topic, self._waits.backlog
        if self._asking or self.answer.settled:
            return
        if not topic.gone:
            try:
                table = backlog.lease_log.table(topic)
                topic.expire(self._waits.engine.time.now())
                backlog.refresh(topic, table)
                if ready(topic, table) <= 0:
                    self._look_later(table.next_due())
                    return
            except Exception:
                self._look_in(_RETRY_MS)
                raise
        self._ask()

    def _ask(self) -> None:
        self._asking = True
        try:
            claimed = self._waits.claimer.claim(self.topic, self.node, self._limit, self._lease_ms)
        except BaseException:
            self._asking = False
            self._over()
            raise
        claimed.then(self._asked)

    def _asked(self, done: Pending[ClaimResult]) -> None:
        self._asking = False
        if done.error is not None:
            self._over()
            self.answer.fail(done.error)
        elif self._hung_up:
            self._waits.settler.release(self.topic, done.result().seqs)
            self._resolve(done.result())
        elif done.result().seqs or self._ending:
            self._resolve(done.result())
        elif not self.topic.gone:
            self._look_later(self._waits.backlog.lease_log.table(self.topic).next_due())
        else:
            self._waits.runtime.soon(self.look)  # the next claim fails, because the topic is gone

    def end(self) -> None:
        """Stop waiting. If a claim is running at this moment, its result is still the answer."""
        if self.answer.settled:
            return
        self._ending = True
        if not self._asking:
            self._resolve(ClaimResult([], [], 0))

    def hang_up(self) -> None:
        """End the claim, because its caller has disconnected. Jobs granted meanwhile are given back."""
        self._hung_up = True
        self.end()

    def _resolve(self, claimed: ClaimResult) -> None:
        self._over()
        self.answer.resolve(claimed)

    def _over(self) -> None:
        self._waits.discard(self)
        for timer in (self._timer, self._deadline):
            if timer is not None:
                timer.cancel()

    def _look_later(self, due: int | None) -> None:
        """Check again when the next lease or delay runs out."""
        self._look_in(None if due is None else max(1, due - self._waits.engine.time.running()))

    def _look_in(self, delay_ms: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if delay_ms is None else self._waits.runtime.later(delay_ms, self.look)
