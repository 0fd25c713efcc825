"""Copies that replay has taken from the source of a dest and not placed yet, in order (`rederivation`)."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from driftq.engine.state.topic import Topic
from driftq.features.router.copies import CopyBatch
from driftq.features.router.destination import Router
from driftq.model.topic_config import Durability


class Slots(NamedTuple):
    """Empty seqs: one for each of these routers and each lost record."""

    owners: list[Router]
    lost: int
    first_seq: int
    """The source seq of the first lost record."""


class Fence(NamedTuple):
    """Source seqs up to `last` that a crash took. It is unknown which of them these routers had copied."""

    owners: list[Router]
    first_seq: int
    last: int


Entry = CopyBatch | Slots | Fence


class CopyQueue:
    """The entries that were taken for one dest, in order."""

    def __init__(self) -> None:
        self.waiting: deque[Entry] = deque()
        self.placed = 0
        """How many copies of the first entry are in dest already."""

    def drop(self, gone: Callable[[int, Router], bool]) -> None:
        """Remove the copies for which `gone` returns True."""
        kept: deque[Entry] = deque()
        begun, self.placed = self.placed, 0
        for number, entry in enumerate(self.waiting):
            start = 0 if number else begun
            if isinstance(entry, Slots):
                if not all(gone(entry.first_seq, owner) for owner in entry.owners):
                    kept.append(entry)
                    self.placed = start or self.placed
                continue
            if isinstance(entry, Fence):
                if not all(gone(entry.last, owner) for owner in entry.owners):
                    kept.append(entry)
                continue
            places = [place for place in range(start, entry.count) if not gone(entry.seqs[place], entry.owners[place])]
            if places:
                kept.append(entry.only(places))
        self.waiting = kept

    def back(self) -> dict[Router, int]:
        """Return for each router the source seq before its first queued entry."""
        cursors: dict[Router, int] = {}
        start = self.placed
        for entry in self.waiting:
            if isinstance(entry, Slots | Fence):
                for owner in entry.owners:
                    cursors.setdefault(owner, entry.first_seq - 1)
            else:
                for place in range(start, entry.count):
                    cursors.setdefault(entry.owners[place], entry.seqs[place] - 1)
            start = 0
        return cursors

    def is_fenced(self, dest: Topic) -> bool:
        """Whether the next entry is a fence. Fences of an `fsync` dest are dropped."""
        while self.waiting and isinstance(self.waiting[0], Fence):
            if dest.durability is not Durability.FSYNC:
                return True
            self.waiting.popleft()
        return False
