"""The number of hops that records have made, by ranges of seqs. Copies of copies end at a limit (http-v0 §11.3).

Hops are kept for topics that are both source and dest, and only for records that some router has not passed yet.
Records outside all ranges were written directly and have made no hop.
"""

from bisect import bisect_right


class Hops:
    """The ranges of one topic, in order: first seq, last seq, hops."""

    __slots__ = ("ranges",)

    def __init__(self, ranges: list[tuple[int, int, int]] | None = None) -> None:
        self.ranges = ranges or []

    def add(self, first: int, last: int, hops: int) -> None:
        """Add a range of records at the head that have made `hops` hops."""
        if self.ranges:
            start, end, before = self.ranges[-1]
            if before == hops and end + 1 == first:
                self.ranges[-1] = (start, last, hops)
                return
        self.ranges.append((first, last, hops))

    def at(self, seq: int) -> tuple[int, int | None]:
        """Return the hops of a record, and the last seq with the same hops; None if that is the end."""
        place = bisect_right(self.ranges, seq, key=lambda held: held[0]) - 1
        if place >= 0 and seq <= self.ranges[place][1]:
            return self.ranges[place][2], self.ranges[place][1]
        following = place + 1
        return 0, self.ranges[following][0] - 1 if following < len(self.ranges) else None

    def forget(self, upto: int) -> None:
        """Forget the records up to `upto`, because every router has passed them."""
        done = 0
        while done < len(self.ranges) and self.ranges[done][1] <= upto:
            done += 1
        del self.ranges[:done]
