"""The holes of a topic: sorted, apart, joined where they touch for one reason."""

from hypothesis import given
from hypothesis import strategies as st

from driftq.engine.state.holes import HoleList
from driftq.model.tombstone import Hole, Reason

ranges = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 12), st.sampled_from((Reason.CRASH, Reason.CORRUPTION))), max_size=8
)


@given(ranges)
def test_a_seq_keeps_the_first_reason_it_was_given(added: list[tuple[int, int, Reason]]) -> None:
    holes = HoleList()
    why: dict[int, Reason] = {}
    for first, size, reason in added:
        holes.add(first, first + size - 1, reason)
        for seq in range(first, first + size):
            why.setdefault(seq, reason)
    assert {seq: hole.reason for hole in holes.all for seq in range(hole.first, hole.last + 1)} == why
    for before, after in zip(holes.all, holes.all[1:], strict=False):
        assert before.last < after.first
        assert before.last + 1 < after.first or before.reason is not after.reason


@given(ranges, st.integers(0, 60))
def test_the_next_hole_is_the_one_that_holds_a_seq_or_lies_behind_it(
    added: list[tuple[int, int, Reason]], seq: int
) -> None:
    holes = HoleList()
    for first, size, reason in added:
        holes.add(first, first + size - 1, reason)
    expected = next((hole for hole in holes.all if hole.last >= seq), None)
    assert holes.at_or_after(seq) == expected


def test_retention_forgets_only_what_it_has_passed() -> None:
    holes = HoleList([Hole(1, 5, Reason.CRASH), Hole(10, 20, Reason.CORRUPTION)])
    holes.forget_before(5)
    assert len(holes.all) == 2
    holes.forget_before(6)
    assert [hole.first for hole in holes.all] == [10]
    holes.forget_before(20)
    assert [hole.first for hole in holes.all] == [10]
    holes.forget_before(21)
    assert holes.all == []


def test_neighbours_of_another_certainty_stay_apart() -> None:
    holes = HoleList()
    holes.add(1, 2, Reason.CRASH)
    holes.add(3, 5, Reason.CRASH, at_most=True)
    holes.add(6, 9, Reason.CRASH, at_most=True)
    assert holes.all == [Hole(1, 2, Reason.CRASH), Hole(3, 9, Reason.CRASH, at_most=True)]
