"""A clock that moves only when a test moves it."""

_NS_PER_MS = 1_000_000


class ManualClock:
    """Wall and monotonic time, held apart so that a test can step the one without the other.

    Monotonic time starts at 0 and never steps back; wall time goes wherever it is set.
    """

    __slots__ = ("_monotonic_ns", "_wall_ns")

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ns = wall_ms * _NS_PER_MS
        self._monotonic_ns = 0

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._wall_ns // _NS_PER_MS

    def monotonic_ns(self) -> int:
        """Nanoseconds since the clock was made."""
        return self._monotonic_ns

    def advance(self, ms: int) -> None:
        """Let time pass on both."""
        self.advance_ns(ms * _NS_PER_MS)

    def advance_ns(self, ns: int) -> None:
        """The same, finer: a worker's idle deadline need not fall on a millisecond."""
        assert ns >= 0, "time that passes does not step back; use set_wall"
        self._wall_ns += ns
        self._monotonic_ns += ns

    def set_wall(self, ms: int) -> None:
        """Step the wall clock, in either direction; durations do not notice."""
        self._wall_ns = ms * _NS_PER_MS
