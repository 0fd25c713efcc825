"""Seq ranges as sorted lists of (first, last), both included: what is wanted, and what is left of it."""

from collections.abc import Iterable

Range = tuple[int, int]


def without(ranges: Iterable[Range], first: int, last: int) -> list[Range]:
    """What is left of some ranges when one is taken out."""
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
    """The parts of some ranges that lie in one."""
    return [(max(low, first), min(high, last)) for low, high in ranges if low <= last and high >= first]


def joined(ranges: Iterable[Range]) -> list[Range]:
    """The same seqs in as few ranges as can be."""
    found: list[Range] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def count(ranges: Iterable[Range]) -> int:
    """How many seqs."""
    return sum(last - first + 1 for first, last in ranges)
