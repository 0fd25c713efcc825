"""A clock that moves only when a test moves it."""

_NS_PER_MS = 1_000_000


class ManualClock:
    """Wall, steady and monotonic time, held apart so that a test can move one without the others.

    Steady and monotonic time start at 0 and never step back; wall time goes wherever it is set.
    """

    __slots__ = ("_monotonic_ns", "_steady_ns", "_wall_ns")

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ns = wall_ms * _NS_PER_MS
        self._steady_ns = 0
        self._monotonic_ns = 0

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._wall_ns // _NS_PER_MS

    def wall_ns(self) -> int:
        """Nanoseconds since the epoch."""
        return self._wall_ns

    def steady_ns(self) -> int:
        """Nanoseconds since the clock was made, suspends included."""
        return self._steady_ns

    def monotonic_ns(self) -> int:
        """Nanoseconds since the clock was made, suspends left out."""
        return self._monotonic_ns

    def advance(self, ms: int) -> None:
        """Let time pass on all three."""
        self.advance_ns(ms * _NS_PER_MS)

    def advance_ns(self, ns: int) -> None:
        """The same, finer: a worker's idle deadline need not fall on a millisecond."""
        assert ns >= 0, "time that passes does not step back; use set_wall"
        self._wall_ns += ns
        self._steady_ns += ns
        self._monotonic_ns += ns

    def set_wall(self, ms: int) -> None:
        """Step the wall clock, in either direction; durations do not notice."""
        self._wall_ns = ms * _NS_PER_MS

    def suspend(self, ms: int) -> None:
        """Let the machine sleep: the time of day and steady time go on, timers of the loop do not."""
        assert ms >= 0, "no machine sleeps backwards"
        self._wall_ns += ms * _NS_PER_MS
        self._steady_ns += ms * _NS_PER_MS

    def reboot(self) -> None:
        """Begin steady and monotonic time anew, as after a boot; the time of day is what it was."""
        self._steady_ns = self._monotonic_ns = 0
