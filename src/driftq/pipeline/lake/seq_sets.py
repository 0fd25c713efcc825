"""Sets of seqs stored as ranges: small enough to compare a topic with a table of any size.

Invariant: ranges are sorted and do not touch, and both of their ends are included.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Range(NamedTuple):
    """Seqs from `first` to `last`, both included."""

    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


class Seqs:
    """A set of seqs, and how many seqs were added more than once."""

    __slots__ = ("_pieces", "_ranges", "_repeated")

    def __init__(self, seqs: Iterable[int] = ()) -> None:
        self._ranges: list[Range] = []
        self._pieces: list[Range] = []
        self._repeated = 0
        self.add(np.fromiter(seqs, np.int64))

    def add(self, seqs: NDArray[np.int64]) -> None:
        """Add the seqs of a page or a file, in any order."""
        if not len(seqs):
            return
        ordered, counts = np.unique(seqs, return_counts=True)
        self._repeated += int((counts - 1).sum())
        cuts = np.flatnonzero(np.diff(ordered) != 1)
        firsts = ordered[np.concatenate(([0], cuts + 1))]
        lasts = ordered[np.concatenate((cuts, [len(ordered) - 1]))]
        self._pieces.extend(map(Range, firsts.tolist(), lasts.tolist()))

    @property
    def repeated(self) -> int:
        """Number of times that a seq was added although the set had it."""
        if self._pieces:
            self._merge()
        return self._repeated

    @property
    def ranges(self) -> list[Range]:
        """The ranges of the set, in ascending order."""
        if self._pieces:
            self._merge()
        return self._ranges

    def _merge(self) -> None:
        merged: list[Range] = []
        for piece in sorted([*self._ranges, *self._pieces]):
            if merged and piece.first <= merged[-1].last + 1:
                known = merged[-1]
                self._repeated += max(0, min(known.last, piece.last) - piece.first + 1)
                merged[-1] = Range(known.first, max(known.last, piece.last))
            else:
                merged.append(piece)
        self._ranges, self._pieces = merged, []

    def __len__(self) -> int:
        return sum(len(one) for one in self.ranges)

    def __iter__(self) -> Iterator[Range]:
        return iter(self.ranges)

    def without(self, other: "Seqs") -> "Seqs":
        """Return the seqs of this set that are not in `other`."""
        left = Seqs()
        taken = iter([*other.ranges, Range(1 << 63, 1 << 63)])
        hole = next(taken)
        for one in self.ranges:
            first = one.first
            while hole.last < first:
                hole = next(taken)
            while first <= one.last:
                if hole.first > one.last:
                    left._ranges.append(Range(first, one.last))
                    break
                if hole.first > first:
                    left._ranges.append(Range(first, hole.first - 1))
                first = hole.last + 1
                if first <= one.last:
                    hole = next(taken)
        return left

    def between(self, first: int, last: int) -> "Seqs":
        """Return the seqs from `first` to `last`, both included."""
        cut = Seqs()
        cut._ranges = [
            Range(max(one.first, first), min(one.last, last))
            for one in self.ranges
            if one.last >= first and one.first <= last
        ]
        return cut
