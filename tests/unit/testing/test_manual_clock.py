"""The manual clock."""

import pytest

from driftq.system.clock import Clock
from driftq.testing import ManualClock


def _as_protocol(clock: ManualClock) -> Clock:
    return clock


def test_time_stands_still_until_it_is_moved() -> None:
    clock = _as_protocol(ManualClock(5_000))
    assert [clock.wall_ms(), clock.wall_ms(), clock.monotonic_ns()] == [5_000, 5_000, 0]


def test_advance_moves_both_and_keeps_what_is_less_than_a_millisecond() -> None:
    clock = ManualClock(5_000)
    clock.advance(20)
    clock.advance_ns(600_000)
    clock.advance_ns(600_000)
    assert (clock.wall_ms(), clock.monotonic_ns()) == (5_021, 21_200_000)


def test_the_wall_clock_steps_back_without_the_monotonic_one() -> None:
    clock = ManualClock(5_000)
    clock.advance(7)
    clock.set_wall(10)
    assert (clock.wall_ms(), clock.monotonic_ns()) == (10, 7_000_000)
    clock.advance(1)
    assert (clock.wall_ms(), clock.monotonic_ns()) == (11, 8_000_000)


def test_passing_time_does_not_step_back() -> None:
    with pytest.raises(AssertionError, match="set_wall"):
        ManualClock().advance(-1)
