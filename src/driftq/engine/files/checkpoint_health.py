"""The age of the last checkpoint, the number of failed ones, and the log lines about failed and slow ones."""

import logging

from driftq.model.units import NS_PER_MS
from driftq.system.clock import Clock
from driftq.system.log_facts import facts

SLOW_MS = 5000
"""A checkpoint that takes longer than this is logged."""

_log = logging.getLogger(__name__)


class CheckpointRecord:
    """Statistics of the checkpoints of this process.

    The 1st, 2nd, 4th, 8th and so on of consecutive failures are logged, so that a checkpoint that is tried again every
    few seconds does not fill the log.
    """

    def __init__(self, clock: Clock) -> None:
        self._now_ns = clock.monotonic_ns
        self._began_ns = self._installed_ns = clock.monotonic_ns()
        self._in_a_row = 0
        self.failures = 0

    @property
    def age_ms(self) -> int:
        """Return the milliseconds since the last checkpoint was installed; before the first one, since the start."""
        return (self._now_ns() - self._installed_ns) // NS_PER_MS

    def begin(self) -> None:
        """Note the time at which a checkpoint begins."""
        self._began_ns = self._now_ns()

    def installed(self, size: int) -> None:
        """Note that the checkpoint that began last is installed."""
        self._installed_ns = self._now_ns()
        took_ms = (self._installed_ns - self._began_ns) // NS_PER_MS
        if self._in_a_row:
            _log.info("checkpoints work again", extra=facts(failed_before=self._in_a_row, ms=took_ms))
        elif took_ms > SLOW_MS:
            _log.info("slow checkpoint", extra=facts(ms=took_ms, bytes=size))
        self._in_a_row = 0

    def failed(self, why: str) -> None:
        """Note a failed checkpoint: the previous one stays, and so does the log since then."""
        self.failures += 1
        self._in_a_row += 1
        if self._in_a_row & (self._in_a_row - 1) == 0:
            named = facts(reason=why, in_a_row=self._in_a_row, age_ms=self.age_ms)
            _log.warning("a checkpoint failed; the log grows until one works", extra=named)
