"""How one message stands in the groups of its topic (http-v1 §22)."""

from typing import NamedTuple

from driftq.groups.book import Book
from driftq.groups.lane import Lane, State

_NAMES = {State.LEASED: "leased", State.WAITING: "waiting", State.READY: "ready"}


class GroupStanding(NamedTuple):
    """How a message stands for one group. One that is done was delivered once, as far as is known here."""

    group: str
    attempts: int
    state: str
    """ready, leased, waiting or done."""
    last_error: str


def standings(book: Book, topic: str, partition: int, offset: int) -> list[GroupStanding]:
    """One of each group, by name."""
    found = book.by_name.get(topic)
    groups = {} if found is None else found.groups
    return [_standing(name, group.lanes.get(partition), offset) for name, group in sorted(groups.items())]


def _standing(group: str, lane: Lane | None, offset: int) -> GroupStanding:
    if lane is not None and offset in lane.done:
        return GroupStanding(group, 1, "done", "")
    entry = None if lane is None else lane.open.get(offset)
    if entry is None:
        return GroupStanding(group, 0, "ready", "")
    return GroupStanding(group, entry.attempts, _NAMES[entry.state], entry.last_error)
