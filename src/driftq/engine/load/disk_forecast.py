"""How much space the data directory has, and how quickly it is used up.

A measurement asks the file system, which may hang, so it runs on the file thread; other code reads the result of the
last measurement. The speed is an average over the last hour: log files come and go, so a few minutes would not be
representative.
"""

from collections import deque
from collections.abc import Callable

from driftq.model.units import NS_PER_S
from driftq.system.clock import Clock
from driftq.system.machine import DiskUsage, space_at

LOOKS_MAX = 720
"""Number of measurements kept: one every 5 seconds for one hour."""
KNOWN_NS = 300_000_000_000
"""Measurements must cover at least 5 minutes before a speed is reported."""


class SpaceWatch:
    """Records the free space of one directory over time."""

    def __init__(self, clock: Clock, path: str, ask: Callable[[str], DiskUsage] = space_at) -> None:
        self._now_ns = clock.monotonic_ns
        self._path = path
        self._ask = ask
        self._looks: deque[tuple[int, int]] = deque(maxlen=LOOKS_MAX)
        self.last: DiskUsage | None = None
        """Result of the last measurement; None before the first one, and when the file system returned an error."""

    def look(self) -> None:
        """Ask the file system for the free space. Call this on the file thread."""
        try:
            self.last = self._ask(self._path)
        except OSError:
            self.last = None
        else:
            self._looks.append((self._now_ns(), self.last.free))

    @property
    def fill_bytes_per_s(self) -> float | None:
        """Return how many bytes of free space are used up per second; negative when it grows, None when unknown."""
        if len(self._looks) < 2:
            return None
        (first_ns, first), (last_ns, last) = self._looks[0], self._looks[-1]
        if last_ns - first_ns < KNOWN_NS:
            return None
        return (first - last) * NS_PER_S / (last_ns - first_ns)
