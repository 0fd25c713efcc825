"""Splits: every live seq of a range in exactly one piece, no piece across a hole, gaps told once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftq.pipeline.source.split_plan import (
    PlannedSegment,
    SeqGap,
    Split,
    TopicFiles,
    gaps_in,
    most_live,
    pieces_in,
    present,
    reach,
    shared_tasks,
    splits_of,
)


def _manifest(
    head: int,
    *,
    earliest: int = 1,
    floor: int = 1,
    holes: tuple[SeqGap, ...] = (),
    segments: tuple[PlannedSegment, ...] = (),
) -> TopicFiles:
    return TopicFiles("t", 1, head, earliest, floor, holes, "id", "/hot", "/cold", segments)


def _segment(first: int, last: int, tier: str = "hot") -> PlannedSegment:
    return PlannedSegment(tier, f"seg-{first}", first, last, last - first + 1)


def test_a_piece_stands_in_one_segment_or_in_none() -> None:
    manifest = _manifest(30, segments=(_segment(1, 10, "cold"), _segment(11, 20)))
    found = [
        (piece.first, piece.last, piece.segment and piece.segment.tier) for piece in pieces_in(manifest, 4, 27, 99)
    ]
    assert found == [(5, 10, "cold"), (11, 20, "hot"), (21, 27, None)]


def test_a_piece_never_runs_across_a_hole() -> None:
    manifest = _manifest(30, holes=(SeqGap(8, 12, "crash"),), segments=(_segment(1, 10), _segment(11, 20)))
    assert [(piece.first, piece.last) for piece in pieces_in(manifest, 0, 30, 99)] == [(1, 7), (13, 20), (21, 30)]


def test_gaps_are_what_lies_below_the_floor_and_the_holes() -> None:
    manifest = _manifest(30, earliest=10, floor=8, holes=(SeqGap(15, 16, "crash"), SeqGap(29, 40, "corruption")))
    assert gaps_in(manifest, 0, 30, "ttl") == [
        SeqGap(1, 9, "ttl"),
        SeqGap(15, 16, "crash"),
        SeqGap(29, 30, "corruption"),
    ]
    assert gaps_in(manifest, 7, 14, "ttl") == []
    assert gaps_in(manifest, 3, 5, "cap") == [SeqGap(4, 5, "cap")]


def test_what_was_deleted_at_the_start_is_no_gap() -> None:
    assert gaps_in(_manifest(30, earliest=10, floor=1), 0, 30, "cap") == []


def test_a_hole_below_the_earliest_record_is_a_gap_unless_an_eviction_covers_it() -> None:
    """What lies around it was deleted, which nobody is told; the hole was not."""
    manifest = _manifest(30, earliest=21, floor=5, holes=(SeqGap(8, 12, "crash"), SeqGap(18, 22, "corruption")))
    assert gaps_in(manifest, 4, 30, "cap") == [SeqGap(8, 12, "crash"), SeqGap(18, 22, "corruption")]
    assert gaps_in(manifest, 10, 20, "cap") == [SeqGap(11, 12, "crash"), SeqGap(18, 20, "corruption")]
    assert gaps_in(manifest, 3, 30, "cap") == [SeqGap(4, 20, "cap"), SeqGap(21, 22, "corruption")]


def test_what_is_lost_costs_no_budget() -> None:
    manifest = _manifest(100, earliest=11, floor=11, holes=(SeqGap(21, 60, "crash"),), segments=(_segment(11, 15),))
    assert present(manifest, 0, 100) == 50
    assert present(manifest, 15, 65) == 10
    assert [reach(manifest, 0, 100, most) for most in (1, 4, 5, 9)] == [11, 14, 15, 19]
    assert reach(manifest, 0, 100, 10) == 60, "the hole behind the last one goes with it"
    assert reach(manifest, 0, 100, 11) == 61
    assert reach(manifest, 0, 100, 50) == 100
    assert reach(manifest, 0, 70, 99) == 70
    assert reach(manifest, 20, 60, 0) == 60, "nothing but a hole"


def test_a_loss_without_a_row_behind_it_has_a_split_of_its_own() -> None:
    manifest = _manifest(9, earliest=10, floor=10)
    (split,) = splits_of(manifest, 0, 9, 100, [SeqGap(1, 9, "cap")])
    assert (split.pieces, split.gaps) == ((), (SeqGap(1, 9, "cap"),))
    assert splits_of(manifest, 0, 9, 100, []) == []


@given(
    head=st.integers(1, 400),
    sizes=st.lists(st.integers(1, 80), max_size=6),
    hole=st.tuples(st.integers(1, 400), st.integers(0, 30)),
    window=st.tuples(st.integers(0, 400), st.integers(0, 400)),
    most=st.integers(1, 120),
    earliest=st.integers(1, 60),
)
def test_splits_cover_a_range_once_and_in_order(
    head: int, sizes: list[int], hole: tuple[int, int], window: tuple[int, int], most: int, earliest: int
) -> None:
    segments, at = [], 1
    for size in sizes:
        if at + size - 1 <= head:
            segments.append(_segment(at, at + size - 1))
            at += size
    gone = SeqGap(hole[0], hole[0] + hole[1], "crash")
    manifest = _manifest(head, earliest=min(earliest, head + 1), holes=(gone,), segments=tuple(segments))
    start, end = min(window), max(window)
    splits = splits_of(manifest, start, end, most, [])
    read = [seq for split in splits for piece in split.pieces for seq in range(piece.first, piece.last + 1)]
    wanted = range(max(start + 1, manifest.earliest), min(end, head) + 1)
    assert read == [seq for seq in wanted if not gone.first <= seq <= gone.last]
    assert all(split.size <= most for split in splits)


def test_a_split_of_small_segments_has_several() -> None:
    manifest = _manifest(40, segments=tuple(_segment(first, first + 9) for first in (1, 11, 21, 31)))
    assert [len(split.pieces) for split in splits_of(manifest, 0, 40, 20, [])] == [2, 2]


@pytest.mark.parametrize("most", [1, 7, 40])
def test_a_large_segment_is_cut(most: int) -> None:
    manifest = _manifest(40, segments=(_segment(1, 40),))
    assert [split.size for split in splits_of(manifest, 0, 40, most, [])] == [
        min(most, 40 - at) for at in range(0, 40, most)
    ]


def test_small_splits_share_a_task_and_large_ones_do_not() -> None:
    def splits(*sizes: int) -> list[Split]:
        return [splits_of(_manifest(size), 0, size, 1000, [])[0] for size in sizes]

    def sizes(*of: int) -> list[list[int]]:
        return [[split.size for split in task] for task in shared_tasks(splits(*of), 100)]

    assert sizes(40, 50, 10, 1, 400, 99, 1) == [[40, 50, 10], [1], [400], [99, 1]]
    assert [len(task) for task in shared_tasks(splits(*[1] * 600), 10_000)] == [250, 250, 100]
    assert shared_tasks([], 10) == []


def test_the_most_live_records_of_a_range_are_those_of_its_segments() -> None:
    half = PlannedSegment("hot", "s", 11, 20, 5)
    manifest = _manifest(30, segments=(_segment(1, 10), half))._replace(records=18)
    assert [most_live(manifest, *bounds) for bounds in ((0, 30), (0, 10), (5, 20), (14, 16), (20, 30), (25, 26))] == [
        *(18, 10, 10, 2, 3, 1),
    ]
