"""Which seqs a replay takes, and in which steps."""

import pytest

from driftq.model.limits import COMMIT_BYTES_MAX
from driftq.pipeline.errors import PipelineError
from driftq.pipeline.jobs.replay.replay_plan import (
    STEP_ROWS,
    Archived,
    ReplayPlan,
    ReplayRequest,
    SeqBounds,
    Wanted,
    absent,
    bounds,
    check_archived,
    first_half,
    holes,
    joined,
    step_rows,
)
from driftq.pipeline.lake.seq_sets import Seqs
from driftq.pipeline.source.split_plan import SeqGap

ALL = Wanted(None, None)


def plan(first: int, last: int, step: int, *, name: str = "replay:n", epoch: int = 1, border: int = 1) -> ReplayPlan:
    return ReplayPlan(name, ReplayRequest(topic="t"), epoch, first, last, border, step)


def archived(held: SeqBounds | None, *gaps: SeqGap) -> Archived | None:
    return None if held is None else Archived(Seqs(range(held.first, held.last + 1)), gaps)


@pytest.mark.parametrize(
    ("wanted", "live", "archive", "expected"),
    [
        (ALL, SeqBounds(5, 20), None, (5, 20, 5)),
        (ALL, SeqBounds(5, 20), SeqBounds(1, 12), (1, 20, 5)),
        (Wanted(3, 8), SeqBounds(5, 20), SeqBounds(1, 12), (3, 8, 5)),
        (Wanted(6, 99), SeqBounds(5, 20), None, (6, 20, 5)),
        (ALL, None, SeqBounds(1, 12), (1, 12, 13)),
        (ALL, SeqBounds(21, 20), SeqBounds(1, 20), (1, 20, 21)),
        (Wanted(2, 4), SeqBounds(5, 20), SeqBounds(1, 12), (2, 4, 5)),
        (ALL, None, None, (1, 0, 1)),
        (ALL, SeqBounds(1, 0), SeqBounds(1, 0), (1, 0, 1)),
    ],
)
def test_the_live_log_is_read_as_far_as_it_goes_and_the_archive_before_it(
    wanted: Wanted, live: SeqBounds | None, archive: SeqBounds | None, expected: tuple[int, int, int]
) -> None:
    assert bounds("t", wanted, live, archived(archive)) == expected


def test_a_range_that_is_gone_needs_the_archive() -> None:
    with pytest.raises(PipelineError, match=r"begins at seq 5: give --lake .* or --from-seq 5"):
        bounds("t", Wanted(3, None), SeqBounds(5, 20), None)


@pytest.mark.parametrize(
    ("wanted", "live", "archive", "lost"),
    [
        (ALL, SeqBounds(16, 20), SeqBounds(1, 12), r"13\.\.15"),
        (Wanted(1, None), SeqBounds(16, 20), SeqBounds(3, 15), r"1\.\.2"),
        (Wanted(1, 20), SeqBounds(16, 20), SeqBounds(1, 0), r"1\.\.15"),
        (Wanted(2, 14), SeqBounds(16, 20), SeqBounds(1, 12), r"13\.\.14"),
    ],
)
def test_what_neither_has_is_told_and_not_left_out(
    wanted: Wanted, live: SeqBounds, archive: SeqBounds, lost: str
) -> None:
    with pytest.raises(PipelineError, match=rf"neither the archive nor the live log of topic 't' has seqs {lost}:"):
        bounds("t", wanted, live, archived(archive))


def test_ranges_beside_what_neither_has_can_be_replayed() -> None:
    assert bounds("t", Wanted(None, 12), SeqBounds(16, 20), archived(SeqBounds(1, 12))) == (1, 12, 16)
    assert bounds("t", Wanted(16, None), SeqBounds(16, 20), archived(SeqBounds(1, 12))) == (16, 20, 16)


def test_what_was_lost_inside_an_archive_stops_a_replay_that_wants_it() -> None:
    archive = Archived(Seqs([*range(1, 11), *range(21, 31)]), (SeqGap(11, 20, "cap"),))
    with pytest.raises(PipelineError, match=r"has seqs 11\.\.20: replay the seqs before or after them"):
        bounds("t", Wanted(1, 40), SeqBounds(31, 40), archive)
    with pytest.raises(PipelineError, match=r"has seqs 15\.\.20:"):
        check_archived("t", 15, 30, archive)
    assert bounds("t", Wanted(1, 10), SeqBounds(31, 40), archive) == (1, 10, 31)
    assert bounds("t", Wanted(21, None), SeqBounds(31, 40), archive) == (21, 40, 31)


def test_what_was_deleted_before_it_was_archived_is_no_loss() -> None:
    archive = Archived(Seqs([1, 2, 5, 6, 9]), (SeqGap(6, 6, "ttl"),))
    assert bounds("t", ALL, SeqBounds(10, 12), archive) == (1, 12, 10)
    assert absent(archive, 1, 9) == []


def test_a_gap_is_none_where_another_archive_has_its_records() -> None:
    archive = Archived(Seqs([1, 2, 3, 7]), (SeqGap(3, 6, "cap"), SeqGap(5, 6, "cap")))
    assert joined(absent(archive, 1, 7)) == [SeqGap(4, 6, "cap")]


def test_holes_of_the_log_that_the_archive_was_told_of_are_told_and_stop_nothing() -> None:
    archive = Archived(Seqs([1, 2, 5, 6]), (SeqGap(3, 4, "crash"), SeqGap(7, 9, "corruption")))
    assert bounds("t", ALL, SeqBounds(10, 12), archive) == (1, 12, 10)
    assert holes(archive, 1, 9) == [SeqGap(3, 4, "crash"), SeqGap(7, 9, "corruption")]
    assert holes(archive, 4, 7) == [SeqGap(4, 4, "crash"), SeqGap(7, 7, "corruption")]
    assert holes(None, 1, 9) == []


def every_step(made: ReplayPlan, refused: set[SeqBounds]) -> list[SeqBounds]:
    """The steps of a run from the beginning, where some are too large."""
    found = []
    behind = made.first - 1
    while behind < made.last:
        step = made.behind(behind)
        while step in refused:
            step = first_half(step)
        found.append(step)
        behind = step.last
    return found


def test_steps_cover_the_range_once_and_go_on_where_they_stopped() -> None:
    made = plan(11, 35, 10)
    assert every_step(made, set()) == [(11, 20), (21, 30), (31, 35)]
    assert made.behind(30) == (31, 35)
    assert every_step(plan(1, 0, 10), set()) == []


def test_a_step_that_is_too_large_is_halved_and_the_others_are_not() -> None:
    made = plan(11, 35, 10)
    refused = {SeqBounds(21, 30), SeqBounds(21, 25), SeqBounds(31, 35)}
    steps = every_step(made, refused)
    assert steps == [(11, 20), (21, 23), (24, 25), (26, 30), (31, 33), (34, 35)]
    assert [made.behind(step.first - 1) for step in steps[2:4]] == [(24, 25), (26, 30)], "also after a restart"


@pytest.mark.parametrize("behind", range(10, 35))
def test_wherever_a_replay_was_cut_off_its_next_step_begins_behind_it_and_ends_in_the_same_one(behind: int) -> None:
    step = plan(11, 35, 10).behind(behind)
    assert step.first == behind + 1
    assert step.first <= step.last <= min(35, 20 + (behind - 10) // 10 * 10)


@pytest.mark.parametrize(("size", "expected"), [(0.0, STEP_ROWS), (100.0, STEP_ROWS), (8e3, 33554), (1e12, 1)])
def test_a_step_of_large_records_has_fewer_of_them(size: float, expected: int) -> None:
    assert step_rows(size) == expected
    assert step_rows(size) * size <= COMMIT_BYTES_MAX // 4 or step_rows(size) == 1


def test_plans_of_one_question_have_one_writer_wherever_they_end() -> None:
    made = plan(1, 10, 5)
    assert made.writer == plan(3, 99, 7, border=50).writer
    assert made.writer not in {plan(1, 10, 5, name="replay:other").writer, plan(1, 10, 5, epoch=2).writer}
    assert len(made.writer) <= 128


def test_what_two_questions_differ_in_is_told() -> None:
    first = ReplayRequest(topic="a", to_seq=9)
    assert first.unlike(ReplayRequest(topic="a", to_seq=9)) == ""
    assert first.unlike(ReplayRequest(topic="b", from_seq=2, to_seq=9)) == (
        "topic is 'a', here it is 'b', from_seq is not given, here it is 2"
    )
    assert first.key() != ReplayRequest(topic="a", from_seq=9).key()


def test_a_hole_that_steps_have_met_in_parts_is_one() -> None:
    parts = [SeqGap(11, 12, "crash"), SeqGap(5, 10, "corruption"), SeqGap(13, 20, "crash"), SeqGap(30, 31, "crash")]
    assert joined([*parts, parts[0]]) == [SeqGap(5, 10, "corruption"), SeqGap(11, 20, "crash"), SeqGap(30, 31, "crash")]
