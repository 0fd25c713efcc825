"""Rates and times as users give them."""

import pytest

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.jobs.pace import Pace, step_of
from driftq.pipeline.jobs.replay.replay_job import to_ms
from driftq.testing import ManualClock


def test_a_rate_is_kept_over_the_whole_run() -> None:
    clock = ManualClock()
    pace = Pace(100.0, clock)
    assert pace.wait_s(500) == pytest.approx(5.0)
    clock.advance(4000)
    assert pace.wait_s(500) == pytest.approx(1.0)
    assert pace.rows_per_s(500) == pytest.approx(125.0)
    clock.advance(10_000)
    assert pace.wait_s(500) == 0.0
    assert Pace(None, clock).wait_s(10**9) == 0.0


def test_a_step_is_small_where_the_rate_is() -> None:
    assert [step_of(rate, 1000) for rate in (None, 10**6, 10.0, 0.01)] == [1000, 1000, 50, 1]


def test_times_are_iso_or_milliseconds() -> None:
    at = 1_794_830_400_000
    assert [to_ms(text, "--x") for text in (str(at), "2026-11-16T12:00:00Z", "2026-11-16T13:00:00+01:00")] == [at] * 3
    assert to_ms("2026-11-16T12:00:00", "--x") == at
    with pytest.raises(PipelineError, match="--from-time 'noon' is not a time"):
        to_ms("noon", "--from-time")
