"""The engine's time: wall time that never goes back, not even over a restart where a TTL has been judged by it.

Expiry is judged, and records are stamped, by one clock. So whatever a reader saw expire before a write has expired by
that write's own stamp too, and replay, which knows only the stamps, takes the same records from the same floors.
"""

from driftq.seam.clock import Clock

AHEAD_MS = 2000
"""How far ahead a moment is noted: two ticks, so that it holds until the next note is synced, and a config that is not
followed by one yet has a whole tick for that."""


class EngineTime:
    """Milliseconds since the epoch, non-decreasing."""

    __slots__ = ("_clock", "_floor")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._floor = 0

    def now(self) -> int:
        """The present."""
        wall = self._clock.wall_ms()
        self._floor = max(self._floor, wall)
        return self._floor

    def ahead(self) -> int:
        """A moment to note, for expiry to be judged up to. By the clock, so that restarts in a row do not add up."""
        return max(self.now(), self._clock.wall_ms() + AHEAD_MS)

    def not_before(self, moment: int) -> None:
        """A moment that was seen once, by an earlier run perhaps."""
        self._floor = max(self._floor, moment)
