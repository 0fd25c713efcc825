"""Ranges of seqs and how far their records have come."""

from driftq.features.router.hops import Hops


def test_what_is_in_no_range_was_written_directly() -> None:
    hops = Hops()
    assert hops.at(5) == (0, None)
    hops.add(3, 4, 1)
    assert hops.at(1) == (0, 2)
    assert hops.at(3) == (1, 4)
    assert hops.at(5) == (0, None)


def test_neighbours_with_the_same_hops_are_one_range() -> None:
    hops = Hops()
    hops.add(1, 2, 1)
    hops.add(3, 5, 1)
    hops.add(6, 6, 2)
    hops.add(9, 9, 2)
    assert hops.ranges == [(1, 5, 1), (6, 6, 2), (9, 9, 2)]
    assert hops.at(7) == (0, 8)


def test_ranges_that_everybody_has_passed_are_forgotten() -> None:
    hops = Hops([(1, 5, 1), (6, 6, 2)])
    hops.forget(4)
    assert hops.ranges == [(1, 5, 1), (6, 6, 2)]
    hops.forget(5)
    assert hops.ranges == [(6, 6, 2)]
    assert hops.at(6) == (2, 6)
