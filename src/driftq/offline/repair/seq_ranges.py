"""Operations on seq ranges: sorted lists of (first, last), both inclusive."""

from collections.abc import Iterable

Range = tuple[int, int]


def without(ranges: Iterable[Range], first: int, last: int) -> list[Range]:
    """Return the ranges without the seqs from `first` to `last`."""
    left: list[Range] = []
    for low, high in ranges:
        if high < first or low > last:
            left.append((low, high))
            continue
        if low < first:
            left.append((low, first - 1))
        if high > last:
            left.append((last + 1, high))
    return left


def within(ranges: Iterable[Range], first: int, last: int) -> list[Range]:
    """Return the parts of the ranges that are between `first` and `last`."""
    return [(max(low, first), min(high, last)) for low, high in ranges if low <= last and high >= first]


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges with the same seqs, sorted, with adjacent and overlapping ranges merged."""
    found: list[Range] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def count(ranges: Iterable[Range]) -> int:
    """Return the number of seqs in the ranges."""
    return sum(last - first + 1 for first, last in ranges)
