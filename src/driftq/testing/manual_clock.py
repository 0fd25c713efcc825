"""A clock that moves only when a test moves it."""

from driftq.model.units import NS_PER_MS


class ManualClock:
    """Wall, steady and monotonic time; a test can move one without the others.

    Steady and monotonic time start at 0 and never step back; wall time can be set to any value.
    """

    __slots__ = ("_monotonic_ns", "_steady_ns", "_wall_ns")

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ns = wall_ms * NS_PER_MS
        self._steady_ns = 0
        self._monotonic_ns = 0

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return self._wall_ns // NS_PER_MS

    def wall_ns(self) -> int:
        """Return nanoseconds since the epoch."""
        return self._wall_ns

    def steady_ns(self) -> int:
        """Return nanoseconds since the clock was made, including suspends."""
        return self._steady_ns

    def monotonic_ns(self) -> int:
        """Return nanoseconds since the clock was made, without suspends."""
        return self._monotonic_ns

    def advance(self, ms: int) -> None:
        """Let time pass on all three clocks."""
        self.advance_ns(ms * NS_PER_MS)

    def advance_ns(self, ns: int) -> None:
        """Let time pass, in nanoseconds: a worker's idle deadline may fall between two milliseconds."""
        assert ns >= 0, "time that passes does not step back; use set_wall"
        self._wall_ns += ns
        self._steady_ns += ns
        self._monotonic_ns += ns

    def set_wall(self, ms: int) -> None:
        """Step the wall clock, in either direction; durations are not affected."""
        self._wall_ns = ms * NS_PER_MS

    def suspend(self, ms: int) -> None:
        """Suspend the machine: wall and steady time continue, timers of the loop do not."""
        assert ms >= 0, "no machine sleeps backwards"
        self._wall_ns += ms * NS_PER_MS
        self._steady_ns += ms * NS_PER_MS

    def reboot(self) -> None:
        """Restart steady and monotonic time at 0, as after a boot; wall time continues."""
        self._steady_ns = self._monotonic_ns = 0
