"""How much room the data directory has, and how quickly it goes.

A look asks the file system, which may hang, so it runs on the thread for files; everybody else reads what the last
look found. The speed is that of the last hour: files of the log come and go, so a few minutes say nothing.
"""

from collections import deque
from collections.abc import Callable

from driftq.system.clock import Clock
from driftq.system.machine import DiskUsage, space_at

LOOKS_MAX = 720
"""One look every five seconds for an hour."""
KNOWN_NS = 300_000_000_000
"""Five minutes of looks are needed to tell a speed."""
_NS_PER_S = 1_000_000_000


class SpaceWatch:
    """The room of one directory over time."""

    def __init__(self, clock: Clock, path: str, ask: Callable[[str], DiskUsage] = space_at) -> None:
        self._now_ns = clock.monotonic_ns
        self._path = path
        self._ask = ask
        self._looks: deque[tuple[int, int]] = deque(maxlen=LOOKS_MAX)
        self.last: DiskUsage | None = None
        """What the last look found; None before the first, and where the file system does not say."""

    def look(self) -> None:
        """Ask the file system. On the thread for files."""
        try:
            self.last = self._ask(self._path)
        except OSError:
            self.last = None
        else:
            self._looks.append((self._now_ns(), self.last.free))

    @property
    def fill_bytes_per_s(self) -> float | None:
        """How quickly the free space shrinks; negative where it grows, None where it is not known yet."""
        if len(self._looks) < 2:
            return None
        (first_ns, first), (last_ns, last) = self._looks[0], self._looks[-1]
        if last_ns - first_ns < KNOWN_NS:
            return None
        return (first - last) * _NS_PER_S / (last_ns - first_ns)
