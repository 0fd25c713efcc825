"""How many hops records have made, by ranges of seqs: copies of copies end at the cap (http-v0 §11.3).

Kept for topics that are copied from and into, and only for records that some router has yet to pass. What is in no
range was written directly.
"""

from bisect import bisect_right


class Hops:
    """The ranges of one topic, in order: first seq, last seq, hops."""

    __slots__ = ("ranges",)

    def __init__(self, ranges: list[tuple[int, int, int]] | None = None) -> None:
        self.ranges = ranges or []

    def add(self, first: int, last: int, hops: int) -> None:
        """Records at the head have made so many."""
        if self.ranges:
            start, end, before = self.ranges[-1]
            if before == hops and end + 1 == first:
                self.ranges[-1] = (start, last, hops)
                return
        self.ranges.append((first, last, hops))

    def at(self, seq: int) -> tuple[int, int | None]:
        """The hops of a record, and the last seq up to which they are the same; None when that is the end."""
        place = bisect_right(self.ranges, seq, key=lambda held: held[0]) - 1
        if place >= 0 and seq <= self.ranges[place][1]:
            return self.ranges[place][2], self.ranges[place][1]
        following = place + 1
        return 0, self.ranges[following][0] - 1 if following < len(self.ranges) else None

    def forget(self, upto: int) -> None:
        """Nobody asks for records up to here any more."""
        done = 0
        while done < len(self.ranges) and self.ranges[done][1] <= upto:
            done += 1
        del self.ranges[:done]
