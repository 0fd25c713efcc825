"""Which messages of a partition a group has done: a floor, and ranges above it (http-v1 §8, §18.4).

Invariants
- every message of the partition at or below `floor` is done, and so is every one inside a range; no other is;
- ranges are disjoint, ascending, above the floor, and begin and end with a message of the partition; between two of
  them, and between the floor and the first, there is a message that is not done.

So there is at most one range more than messages that are open below the highest done one. What follows an offset in the
partition is told by whoever knows its messages, for offsets of one partition have gaps.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable

Following = Callable[[int], int | None]
"""The next message of the partition behind an offset, or None when it is the last one."""


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
        """Those above the floor, first and last."""
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
        """A message that was not done is."""
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
        """The lowest offset at or above this one that no range covers; it need not be a message."""
        if offset <= self.floor:
            offset = self.floor + 1
        place = bisect_right(self.starts, offset) - 1
        return self.ends[place] + 1 if place >= 0 and offset <= self.ends[place] else offset
