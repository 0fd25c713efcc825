"""The holes of one topic: sorted, apart, neighbours of one reason and one certainty joined."""

from bisect import bisect_right

from msgspec import structs

from driftq.model.tombstone import Hole, Reason


class HoleList:
    """Seq ranges that hold no record through no wish of the reader."""

    __slots__ = ("all",)

    def __init__(self, holes: list[Hole] | None = None) -> None:
        self.all: list[Hole] = holes or []

    def add(self, first: int, last: int, reason: Reason, *, at_most: bool = False) -> None:
        """One more range. What is a hole already stays what it is."""
        if first > last:
            return
        gaps = []
        for hole in self.all:
            if hole.last < first or hole.first > last:
                continue
            if first < hole.first:
                gaps.append(Hole(first, hole.first - 1, reason, at_most))
            first = hole.last + 1
        if first <= last:
            gaps.append(Hole(first, last, reason, at_most))
        self.all = _joined(sorted([*self.all, *gaps], key=lambda hole: hole.first))

    def forget_before(self, seq: int) -> None:
        """Retention has passed everything below a seq: a hole down there tells nobody anything."""
        if self.all and self.all[0].last < seq:
            self.all = [hole for hole in self.all if hole.last >= seq]

    def at_or_after(self, seq: int) -> Hole | None:
        """The hole that holds a seq, or the next one behind it."""
        place = bisect_right(self.all, seq, key=lambda hole: hole.first) - 1
        if place >= 0 and seq <= self.all[place].last:
            return self.all[place]
        return self.all[place + 1] if place + 1 < len(self.all) else None


def _kind(hole: Hole) -> tuple[Reason, bool]:
    return hole.reason, hole.at_most


def _joined(holes: list[Hole]) -> list[Hole]:
    joined: list[Hole] = []
    for hole in holes:
        before = joined[-1] if joined else None
        if before is not None and before.last + 1 == hole.first and _kind(before) == _kind(hole):
            joined[-1] = structs.replace(before, last=hole.last)
        else:
            joined.append(hole)
    return joined
