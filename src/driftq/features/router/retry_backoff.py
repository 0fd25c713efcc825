"""When a router that cannot continue is tried again (http-v0 §11.3).

    going on ─blocked─► waits 50 ms ─blocked─► 100 ms … ─blocked─► 5 s, and so on
       ▲                    └── a step that works, or a change of the destination ──┘

A router is blocked while its destination has no room for the next copy, or the log accepts no writes. An event that
makes room in the destination (a delete, an ack, another config, its TTL) causes a retry at once: the waiters of the
destination are woken, and the time of the next TTL expiry is known. Room that another topic makes (the server's limit
of bytes), and a log that works again, are found by the next retry, after 5 s at most.

Invariants
- An inflow has at most one timer, and one waiter at its destination while it is blocked.
- A blocked inflow is tried only by a timer, a change of the destination and a reader, not by writes to its source.
"""

from collections.abc import Callable

from driftq.engine.engine import Engine
from driftq.engine.state.topic import Topic
from driftq.features.router.destination import Inflow
from driftq.features.router.router_table import RouterTable
from driftq.system.runtime import Runtime

RETRY_MS = 50
RETRY_MS_MAX = 5000


class Backoff:
    """The retry timers of all inflows."""

    def __init__(self, table: RouterTable, engine: Engine, runtime: Runtime, wake: Callable[[Inflow], None]) -> None:
        self._table = table
        self._engine = engine
        self._runtime = runtime
        self._wake = wake
        self._waiting: dict[Inflow, tuple[str, Callable[[], None]]] = {}
        self.closed = False

    def block(self, inflow: Inflow) -> None:
        """Retry an inflow later, because a step was blocked. The delay doubles each time, up to 5 s."""
        if inflow.timer is not None or self.closed:
            return  # a reader tried it while the timer was running
        delay_ms = inflow.retry_ms or RETRY_MS
        inflow.retry_ms = min(2 * delay_ms, RETRY_MS_MAX)
        dest = self._table.topic(inflow.dest_id)
        if dest is not None:
            self._wait_for_room(inflow, dest)
            delay_ms = min(delay_ms, self._expires_in(dest, delay_ms))
        self.later(inflow, delay_ms)

    def later(self, inflow: Inflow, delay_ms: int) -> None:
        """Wake an inflow after `delay_ms`, unless its timer is already running."""
        if inflow.timer is None and not self.closed:

            def again() -> None:
                inflow.timer = None
                self._wake(inflow)

            inflow.timer = self._runtime.later(delay_ms, again)

    def went_on(self, inflow: Inflow) -> None:
        """Reset the delay, because a step worked."""
        if inflow.retry_ms:
            inflow.retry_ms = 0
            self._stop_waiting(inflow)

    def cancel(self, inflow: Inflow) -> None:
        """Cancel the timer and the waiter of an inflow."""
        if inflow.timer is not None:
            inflow.timer.cancel()
            inflow.timer = None
        inflow.retry_ms = 0
        self._stop_waiting(inflow)

    def _wait_for_room(self, inflow: Inflow, dest: Topic) -> None:
        if inflow not in self._waiting:

            def changed() -> None:
                self.cancel(inflow)
                self._wake(inflow)

            self._waiting[inflow] = dest.name, changed
            self._engine.wakeups.add(dest.name, changed)

    def _stop_waiting(self, inflow: Inflow) -> None:
        waiting = self._waiting.pop(inflow, None)
        if waiting is not None:
            self._engine.wakeups.discard(*waiting)

    def _expires_in(self, dest: Topic, default_ms: int) -> int:
        """Return in how many milliseconds the oldest record of a destination expires, at least `RETRY_MS`."""
        if not dest.config.ttl_ms or not dest.count:
            return default_ms
        due = dest.timeline.moment(dest.oldest_ts) + dest.config.ttl_ms + 1
        return max(RETRY_MS, due - self._engine.time.now())
