"""The holes of one topic: sorted and disjoint; neighbours with the same reason and certainty are joined."""

from bisect import bisect_right

from msgspec import structs

from driftq.model.tombstone import Hole, Reason


class HoleList:
    """Seq ranges whose records were lost or damaged, not deleted on request."""

    __slots__ = ("all",)

    def __init__(self, holes: list[Hole] | None = None) -> None:
        self.all: list[Hole] = holes or []

    def add(self, first: int, last: int, reason: Reason, *, at_most: bool = False) -> None:
        """Add a range. Parts of it that are holes already keep their reason."""
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
        """Remove the holes below a seq that retention has passed, because readers get a tombstone for them anyway."""
        if self.all and self.all[0].last < seq:
            self.all = [hole for hole in self.all if hole.last >= seq]

    def at_or_after(self, seq: int) -> Hole | None:
        """Return the hole that contains a seq, or the next one above it."""
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
