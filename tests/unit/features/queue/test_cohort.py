"""Dealing: evenly, in order, never more than was asked for."""

from hypothesis import given
from hypothesis import strategies as st

from driftq.features.queue.cohort import deal


def test_four_who_ask_for_ten_get_five_each_of_twenty() -> None:
    """inv: 72"""
    assert [len(hand) for hand in deal(range(1, 21), [10] * 4)] == [5] * 4


def test_nobody_gets_more_than_he_asked_for() -> None:
    assert deal(range(1, 10), [1, 3, 10]) == [[1], [2, 4, 6], [3, 5, 7, 8, 9]]


@given(st.integers(0, 60), st.lists(st.integers(0, 20), min_size=1, max_size=6))
def test_everything_is_dealt_once_and_evenly(count: int, limits: list[int]) -> None:
    hands = deal(range(count), limits)
    dealt = sorted(item for hand in hands for item in hand)
    assert dealt == list(range(min(count, sum(limits))))
    assert all(hand == sorted(hand) for hand in hands)
    most = max(map(len, hands))
    for hand, limit in zip(hands, limits, strict=True):
        assert len(hand) <= limit
        assert len(hand) >= min(limit, most - 1), "who has room is at most one behind"
