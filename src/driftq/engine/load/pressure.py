"""How overloaded the server is, and what follows from it (http-v0 §15). Throttling costs latency, never data.

Two signals: how full the fullest shard's queue is, and how late the event loop runs its timers. A tick every `TICK_MS`
measures the second one; the smaller of the last two measurements counts. So a machine that was asleep, or one long loop
turn, has no effect, while a loop that cannot keep up is late in every tick.

    CALM      nothing happens
    PRESSED   pushes are gathered for `GATHER_MS`; topics of negative priority are not pushed, but can still be polled
    CRITICAL  writes are refused too, unless they set `disable_backpressure`
"""

from enum import IntEnum

from driftq.errors import ThrottledError
from driftq.model.limits import WAL_QUEUE_MAX
from driftq.model.units import NS_PER_MS
from driftq.storage.wal.shards import Shards
from driftq.system.clock import Clock
from driftq.system.runtime import Runtime, Timer

TICK_MS = 100
GATHER_MS = 20
RETRY_MS = 100

_PRESSED_DEPTH, _CRITICAL_DEPTH = WAL_QUEUE_MAX * 50 // 100, WAL_QUEUE_MAX * 90 // 100
_PRESSED_LAG_MS, _CRITICAL_LAG_MS = 50, 500


class Level(IntEnum):
    """Degree of overload; the higher, the more the server holds back."""

    CALM = 0
    PRESSED = 1
    CRITICAL = 2


class Pressure:
    """Computes the level of overload from queue depth and loop lag."""

    def __init__(self, runtime: Runtime, clock: Clock, shards: Shards) -> None:
        self._runtime = runtime
        self._clock = clock
        self._shards = shards
        self._timer: Timer | None = None
        self._due_ns = 0
        self._lag_ms = 0
        self._last_lag_ms = 0

    def start(self) -> None:
        """Begin to measure how late the loop is."""
        self._due_ns = self._clock.monotonic_ns() + TICK_MS * NS_PER_MS
        self._timer = self._runtime.later(TICK_MS, self._tick)

    def stop(self) -> None:
        """Stop the measurements by cancelling the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        lag_ms = (self._clock.monotonic_ns() - self._due_ns) // NS_PER_MS
        self._lag_ms = min(lag_ms, self._last_lag_ms)
        self._last_lag_ms = lag_ms
        self.start()

    @property
    def level(self) -> Level:
        """Return the current level of overload."""
        depth = max(shard.depth for shard in self._shards.all)
        if depth > _CRITICAL_DEPTH or self._lag_ms > _CRITICAL_LAG_MS:
            return Level.CRITICAL
        if depth > _PRESSED_DEPTH or self._lag_ms > _PRESSED_LAG_MS:
            return Level.PRESSED
        return Level.CALM

    def check_write(self) -> None:
        """Raise ThrottledError while the level is CRITICAL."""
        critical = self._lag_ms > _CRITICAL_LAG_MS
        for shard in self._shards.all:
            critical |= shard.depth > _CRITICAL_DEPTH
        if critical:
            raise ThrottledError(
                "the server cannot keep up; try again shortly",
                detail={"retry_after_ms": RETRY_MS},
                retry_after_ms=RETRY_MS,
            )
