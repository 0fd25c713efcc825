"""Time, as one seam. Wall time stamps records; monotonic time measures durations and nothing else."""

import time
from typing import Protocol


class Clock(Protocol):
    """What the product may ask about time."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch. May step in either direction."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds since some moment. Never steps back."""
        ...


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    monotonic_ns = staticmethod(time.monotonic_ns)
