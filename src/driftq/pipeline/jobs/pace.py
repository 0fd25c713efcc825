"""Limits the rate of a job that writes in steps, and measures its speed.

The limit counts from the first record, so the time that Spark needs to start is not made up for. Neither is a step that
took long: at any time at most one step is written at once, and a step is at most one second of the rate.
"""

from driftq.system.clock import Clock, SystemClock

_NS = 1e9


class Pace:
    """Measures the rows per second of a run, and returns how many seconds to wait to stay within `rate`."""

    def __init__(self, rate: float | None, clock: Clock | None = None) -> None:
        self._rate = rate
        self._clock = clock or SystemClock()
        self._began_ns = self._clock.monotonic_ns()
        self._rows = 0
        self._next_s: float | None = None
        """When the next step may be sent, in seconds; None before the first step."""

    def _passed_s(self) -> float:
        return (self._clock.monotonic_ns() - self._began_ns) / _NS

    def rows_per_s(self, rows: int) -> float:
        """Return the average speed so far."""
        return rows / max(self._passed_s(), 1e-3)

    def wait_s(self, rows: int) -> float:
        """Return how many seconds to wait before the next step, now that `rows` rows are written in total."""
        if self._rate is None:
            return 0.0
        now, step = self._passed_s(), rows - self._rows
        self._rows = rows
        sent = now if self._next_s is None else self._next_s
        self._next_s = max(now, sent + step / self._rate)
        return self._next_s - now


def step_of(rate: float | None, most: int) -> int:
    """Return the number of rows of a step: `most`, or what `rate` (rows per second) allows in 1 s if that is less."""
    return most if rate is None else max(1, min(most, int(rate)))
