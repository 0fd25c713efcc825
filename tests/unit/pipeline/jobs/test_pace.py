"""Rates and times as users give them."""

import pytest

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.jobs.pace import Pace, step_of
from driftq.pipeline.jobs.replay.replay_job import to_ms
from driftq.testing import ManualClock


def sent(pace: Pace, clock: ManualClock, *took_ms: int) -> list[int]:
    """Return when each step of 100 rows ended, in ms, if the steps take so long."""
    began, ends = clock.monotonic_ns(), []
    for number, took in enumerate(took_ms, 1):
        clock.advance(took)
        ends.append((clock.monotonic_ns() - began) // 1_000_000)
        clock.advance(round(pace.wait_s(number * 100) * 1000))
    return ends


def test_a_rate_counts_from_the_first_record() -> None:
    clock = ManualClock()
    assert sent(Pace(100.0, clock), clock, 20_000, 0, 0, 0) == [20_000, 21_000, 22_000, 23_000]
    assert Pace(None, clock).wait_s(10**9) == 0.0


def test_the_time_of_a_step_counts_and_a_slow_one_is_not_made_up_for() -> None:
    clock = ManualClock()
    assert sent(Pace(100.0, clock), clock, 0, 300, 300, 9_000, 0, 0) == [0, 1300, 2300, 12_000, 12_000, 13_000]


def test_speed_is_measured_from_the_start() -> None:
    clock = ManualClock()
    pace = Pace(100.0, clock)
    clock.advance(4000)
    assert pace.rows_per_s(500) == pytest.approx(125.0)


def test_a_step_has_at_most_one_second_of_the_rate() -> None:
    assert [step_of(rate, 1000) for rate in (None, 10**6, 10.0, 0.01)] == [1000, 1000, 10, 1]


def test_times_are_iso_or_milliseconds() -> None:
    at = 1_794_830_400_000
    assert [to_ms(text, "--x") for text in (str(at), "2026-11-16T12:00:00Z", "2026-11-16T13:00:00+01:00")] == [at] * 3
    assert to_ms("2026-11-16T12:00:00", "--x") == at
    with pytest.raises(PipelineError, match="--from-time 'noon' is not a time"):
        to_ms("noon", "--from-time")
