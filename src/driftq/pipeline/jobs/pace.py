"""A rate that is kept over the whole of a run: how fast it was, and how long to wait before the next step."""

from driftq.system.clock import Clock, SystemClock

_NS = 1e9
_STEP_S = 5
"""Where there is a rate, a step is what may pass in so many seconds."""


class Pace:
    """Of one run, which begins when this is made."""

    def __init__(self, rate: float | None, clock: Clock | None = None) -> None:
        self._rate = rate
        self._clock = clock or SystemClock()
        self._began_ns = self._clock.monotonic_ns()

    def _passed_s(self) -> float:
        return (self._clock.monotonic_ns() - self._began_ns) / _NS

    def rows_per_s(self, rows: int) -> float:
        """How fast it was."""
        return rows / max(self._passed_s(), 1e-3)

    def wait_s(self, rows: int) -> float:
        """How long until so many rows are not too many."""
        return 0.0 if self._rate is None else max(0.0, rows / self._rate - self._passed_s())


def step_of(rate: float | None, most: int) -> int:
    """How many rows a step has."""
    return most if rate is None else max(1, min(most, int(rate * _STEP_S)))
