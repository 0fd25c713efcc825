"""Which seqs a replay takes, and in which steps."""

import pytest

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.jobs.ranges import Held, Plan, Wanted, bounds, joined
from driftq.pipeline.planning import Gap

ALL = Wanted(None, None)


def plan(first: int, last: int, step: int) -> Plan:
    return Plan("id", "t", 1, first, last, first, step)


@pytest.mark.parametrize(
    ("wanted", "live", "archive", "expected"),
    [
        (ALL, Held(5, 20), None, (5, 20, 5)),
        (ALL, Held(5, 20), Held(1, 12), (1, 20, 5)),
        (Wanted(3, 8), Held(5, 20), Held(1, 12), (3, 8, 5)),
        (Wanted(6, 99), Held(5, 20), None, (6, 20, 5)),
        (ALL, None, Held(1, 12), (1, 12, 13)),
        (ALL, Held(21, 20), Held(1, 20), (1, 20, 21)),
        (Wanted(2, 4), Held(5, 20), Held(1, 12), (2, 4, 5)),
        (ALL, None, None, (1, 0, 1)),
        (ALL, Held(1, 0), Held(1, 0), (1, 0, 1)),
    ],
)
def test_the_live_log_is_read_as_far_as_it_goes_and_the_archive_before_it(
    wanted: Wanted, live: Held | None, archive: Held | None, expected: tuple[int, int, int]
) -> None:
    assert bounds("t", wanted, live, archive) == expected


def test_a_range_that_is_gone_needs_the_archive() -> None:
    with pytest.raises(PipelineError, match=r"begins at seq 5: give --lake .* or --from-seq 5"):
        bounds("t", Wanted(3, None), Held(5, 20), None)


@pytest.mark.parametrize(
    ("wanted", "live", "archive", "lost"),
    [
        (ALL, Held(16, 20), Held(1, 12), r"13\.\.15"),
        (Wanted(1, None), Held(16, 20), Held(3, 15), r"1\.\.2"),
        (Wanted(1, 20), Held(16, 20), Held(1, 0), r"1\.\.15"),
        (Wanted(2, 14), Held(16, 20), Held(1, 12), r"13\.\.14"),
    ],
)
def test_what_neither_has_is_told_and_not_left_out(wanted: Wanted, live: Held, archive: Held, lost: str) -> None:
    with pytest.raises(PipelineError, match=rf"neither the archive nor the live log of topic 't' has seqs {lost}:"):
        bounds("t", wanted, live, archive)


def test_ranges_beside_what_neither_has_can_be_replayed() -> None:
    assert bounds("t", Wanted(None, 12), Held(16, 20), Held(1, 12)) == (1, 12, 16)
    assert bounds("t", Wanted(16, None), Held(16, 20), Held(1, 12)) == (16, 20, 16)


def test_steps_cover_the_range_once_and_go_on_where_they_stopped() -> None:
    steps = list(plan(11, 35, 10).steps())
    assert steps == [(0, 11, 20), (1, 21, 30), (2, 31, 35)]
    assert list(plan(11, 35, 10).steps(after=1)) == steps[2:]
    assert list(plan(1, 0, 10).steps()) == []


def test_a_hole_that_steps_have_met_in_parts_is_one() -> None:
    parts = [Gap(11, 12, "crash"), Gap(5, 10, "corruption"), Gap(13, 20, "crash"), Gap(30, 31, "crash")]
    assert joined([*parts, parts[0]]) == [Gap(5, 10, "corruption"), Gap(11, 20, "crash"), Gap(30, 31, "crash")]


def test_what_is_done_of_a_plan_ends_with_its_last_step() -> None:
    assert [plan(11, 35, 10).done(after) for after in (-1, 0, 2)] == [10, 20, 35]
