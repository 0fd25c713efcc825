"""The messages of a partition that a group has done: a floor, and ranges above it (http-v1 §8, §18.4).

Invariants
- every message of the partition at or below `floor` is done, and so is every one inside a range; no other is;
- ranges are disjoint, ascending, above the floor, and begin and end with a message of the partition; between two of
  them, and between the floor and the first, there is a message that is not done.

So the number of ranges is at most one above the number of open messages below the highest done one. Offsets of one
partition have gaps, so the caller passes a function that returns the next message after an offset.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable

Following = Callable[[int], int | None]
"""Returns the next message of the partition after an offset, or None after the last one."""


class Done:
    """The done messages of one group in one partition."""

    __slots__ = ("ends", "floor", "starts")

    def __init__(self, floor: int = -1, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self.floor = floor
        self.starts: list[int] = []
        self.ends: list[int] = []
        for start, end in ranges:
            self.starts.append(start)
            self.ends.append(end)

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The ranges above the floor, as pairs of first and last offset."""
        return list(zip(self.starts, self.ends, strict=True))

    @property
    def last(self) -> int:
        """The highest done message, or -1."""
        return self.ends[-1] if self.ends else self.floor

    def __contains__(self, offset: int) -> bool:
        if offset <= self.floor:
            return True
        place = bisect_right(self.starts, offset) - 1
        return place >= 0 and offset <= self.ends[place]

    def add(self, offset: int, following: Following) -> None:
        """Add a message that was not done before."""
        starts, ends = self.starts, self.ends
        if following(self.floor) == offset:
            self.floor = offset
            while starts and following(self.floor) == starts[0]:
                self.floor = ends[0]
                del starts[0], ends[0]
            return
        place = bisect_right(starts, offset)
        joins_left = place > 0 and following(ends[place - 1]) == offset
        joins_right = place < len(starts) and following(offset) == starts[place]
        if joins_left and joins_right:
            ends[place - 1] = ends[place]
            del starts[place], ends[place]
        elif joins_left:
            ends[place - 1] = offset
        elif joins_right:
            starts[place] = offset
        else:
            starts.insert(place, offset)
            ends.insert(place, offset)

    def beyond(self, offset: int) -> int:
        """Return the lowest offset at or above this one that is not done; there may be no message at it."""
        if offset <= self.floor:
            offset = self.floor + 1
        place = bisect_right(self.starts, offset) - 1
        return self.ends[place] + 1 if place >= 0 and offset <= self.ends[place] else offset
