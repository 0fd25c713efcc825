"""Time: three clocks of the machine, each for one purpose.

wall       the time of day. It may step in either direction. For timestamps, deadlines from clients, and display. steady
counts every millisecond once, also while the machine is suspended, and never steps. For durations. monotonic  the clock
of the event loop; it may stop while the machine is suspended. For figures of one request.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """The clocks that the product may use."""

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch. May step in either direction."""
        ...

    def wall_ns(self) -> int:
        """Return nanoseconds since the epoch, of the wall clock."""
        ...

    def steady_ns(self) -> int:
        """Return nanoseconds since some moment, suspends included. Never steps; only differences mean anything."""
        ...

    def monotonic_ns(self) -> int:
        """Return nanoseconds since some moment. Never steps back; may stop while the machine is suspended."""
        ...


_STEADY: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The clocks of the machine."""

    __slots__ = ()

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    wall_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)

    def steady_ns(self) -> int:
        """Return nanoseconds since the boot. Suspends count if the machine has a clock that counts them."""
        return time.clock_gettime_ns(_STEADY)
