"""Keeps the average rate of a run at a limit: measures the speed, and how long to wait before the next step."""

from driftq.system.clock import Clock, SystemClock

_NS = 1e9
_STEP_S = 5
"""With a rate limit, a step has the rows of this many seconds."""


class Pace:
    """Measures one run, from the moment this object is made."""

    def __init__(self, rate: float | None, clock: Clock | None = None) -> None:
        self._rate = rate
        self._clock = clock or SystemClock()
        self._began_ns = self._clock.monotonic_ns()

    def _passed_s(self) -> float:
        return (self._clock.monotonic_ns() - self._began_ns) / _NS

    def rows_per_s(self, rows: int) -> float:
        """Return the average speed so far."""
        return rows / max(self._passed_s(), 1e-3)

    def wait_s(self, rows: int) -> float:
        """Return how many seconds to wait until `rows` rows are within the rate."""
        return 0.0 if self._rate is None else max(0.0, rows / self._rate - self._passed_s())


def step_of(rate: float | None, most: int) -> int:
    """Return the number of rows of a step: `most`, or what `rate` (rows per second) allows in 5 s if that is less."""
    return most if rate is None else max(1, min(most, int(rate * _STEP_S)))
