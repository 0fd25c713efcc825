"""The machine's clock."""

import time

from driftq.system.clock import Clock, SystemClock


def _as_protocol(clock: SystemClock) -> Clock:
    return clock


def test_wall_time_is_the_machines_in_milliseconds() -> None:
    before = time.time_ns() // 1_000_000
    now = _as_protocol(SystemClock()).wall_ms()
    assert before <= now <= time.time_ns() // 1_000_000


def test_monotonic_time_never_steps_back() -> None:
    clock = SystemClock()
    moments = [clock.monotonic_ns() for _ in range(100)]
    assert moments == sorted(moments)
