"""Sets of seqs against plain sets."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from driftq.pipeline.lake.seq_sets import Range, Seqs

SEQS = st.lists(st.integers(1, 60), max_size=40)


def plain(seqs: Seqs) -> set[int]:
    return {seq for one in seqs for seq in range(one.first, one.last + 1)}


@given(st.lists(SEQS, max_size=4))
def test_pages_in_any_order_are_one_set_and_what_came_twice_is_counted(pages: list[list[int]]) -> None:
    seqs = Seqs()
    for page in pages:
        seqs.add(np.array(page, np.int64))
    everything = [seq for page in pages for seq in page]
    assert plain(seqs) == set(everything)
    assert len(seqs) == len(set(everything))
    assert seqs.repeated == len(everything) - len(set(everything))


@given(SEQS)
def test_ranges_are_in_order_and_do_not_touch(some: list[int]) -> None:
    ranges = Seqs(some).ranges
    assert all(one.last + 1 < other.first for one, other in pairwise(ranges))


@given(SEQS, SEQS)
def test_what_is_here_and_not_there(some: list[int], others: list[int]) -> None:
    assert plain(Seqs(some).without(Seqs(others))) == set(some) - set(others)


@given(SEQS, st.integers(0, 60), st.integers(0, 60))
def test_a_cut(some: list[int], first: int, last: int) -> None:
    assert plain(Seqs(some).between(first, last)) == {seq for seq in some if first <= seq <= last}


def test_a_range_reads_as_people_write_it() -> None:
    assert str(Range(3, 3)) == "3"
    assert str(Range(3, 9)) == "3-9"
