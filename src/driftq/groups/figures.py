"""How groups stand, for people and for metrics (http-v1 §17, §22)."""

from driftq.groups.book import Book, BrokerTopic
from driftq.groups.group import Group
from driftq.groups.lane import Lane, State
from driftq.model.broker_answers import GroupRow, PartitionRow


def figures(book: Book, now: int, topic: str | None = None, group: str | None = None) -> list[GroupRow]:
    """Every group, or those of this topic and name."""
    return [
        GroupRow(
            found.name,
            member.name,
            len(member.streams),
            [_lane_figures(found, member, partition, now) for partition in range(found.partitions)],
        )
        for name, found in sorted(book.by_name.items())
        if topic is None or name == topic
        for of, member in sorted(found.groups.items())
        if group is None or of == group
    ]


def _lane_figures(topic: BrokerTopic, group: Group, partition: int, now: int) -> PartitionRow:
    lane = group.lanes.get(partition) or Lane(partition, topic.index, live=True)
    leased = [entry for entry in lane.open.values() if entry.state is State.LEASED]
    owners = sorted({entry.owner for entry in leased if entry.owner is not None})
    return PartitionRow(
        partition,
        lane.done.floor,
        lane.done.last,
        lane.count,
        lane.lag,
        len(leased),
        len(lane.open) - len(leased),
        owners,
        _oldest_ms(topic, lane, now),
    )


def _oldest_ms(topic: BrokerTopic, lane: Lane, now: int) -> int | None:
    """The age of the oldest open message, as far as it is known without reading it: that of its block."""
    oldest = lane.index.at_or_after(lane.partition, lane.done.floor + 1)
    part = None if oldest is None else next(topic.log.parts(oldest + 1), None)
    return None if part is None else max(0, now - part.first_ts)
