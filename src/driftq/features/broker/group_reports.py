"""Reports on the state of groups, for users and for metrics (http-v1 §17, §22)."""

from typing import NamedTuple

from driftq.engine.engine_time import EngineTime
from driftq.engine.read.topic_page import Damaged, Missing, rows_nowait
from driftq.errors import DriftQError
from driftq.features.broker.state.broker_state import BrokerState, BrokerTopic
from driftq.features.broker.state.group import ConsumerGroup
from driftq.features.broker.state.group_partition import GroupPartition, State
from driftq.model.v1_answers import GroupRow, PartitionRow


def figures(
    broker_state: BrokerState,
    time: EngineTime,
    topic: str | None = None,
    group: str | None = None,
    *,
    ages: bool = True,
) -> list[GroupRow]:
    """Return all groups, or those of this topic and name. Without `ages` no block is read."""
    return [
        GroupRow(
            found.name,
            member.name,
            len(member.streams),
            [
                _partition_figures(found, member, partition, time if ages else None)
                for partition in range(found.partitions)
            ],
        )
        for name, found in sorted(broker_state.by_name.items())
        if topic is None or name == topic
        for of, member in sorted(found.groups.items())
        if group is None or of == group
    ]


def _partition_figures(
    topic: BrokerTopic, group: ConsumerGroup, partition: int, time: EngineTime | None
) -> PartitionRow:
    group_partition = group.group_partitions.get(partition) or GroupPartition(partition, topic.index, live=True)
    leased = [entry for entry in group_partition.open.values() if entry.state is State.LEASED]
    owners = sorted({entry.owner for entry in leased if entry.owner is not None})
    return PartitionRow(
        partition,
        group_partition.done.floor,
        group_partition.done.last,
        group_partition.count,
        group_partition.lag,
        len(leased),
        len(group_partition.open) - len(leased),
        owners,
        None if time is None else _oldest_ms(topic, group_partition, time),
    )


def _oldest_ms(topic: BrokerTopic, group_partition: GroupPartition, time: EngineTime) -> int | None:
    """Return the age of the oldest open message; if its block is not in memory, the age of the block."""
    oldest = group_partition.index.at_or_after(group_partition.partition, group_partition.done.floor + 1)
    part = None if oldest is None else next(topic.log.parts(oldest + 1), None)
    if oldest is None or part is None:
        return None
    stored = part.first_ts
    if stored != part.last_ts:
        try:
            source = rows_nowait(topic.log, part, [])
        except DriftQError:
            source = Missing(part, [])
        if not isinstance(source, Missing | Damaged):
            row = max(0, oldest + 1 - part.first_seq)
            times = source.times(row, row + 1)
            stored = times if isinstance(times, int) else times[0]
    return time.age(stored)


_NAMES = {State.LEASED: "leased", State.WAITING: "waiting", State.READY: "ready"}


class GroupStanding(NamedTuple):
    """The state of a message in one group. For a done message, `attempts` is always 1."""

    group: str
    attempts: int
    state: str
    """One of ready, leased, waiting or done."""
    last_error: str


def standings(broker_state: BrokerState, topic: str, partition: int, offset: int) -> list[GroupStanding]:
    """Return the state of a message in each group, ordered by group name."""
    found = broker_state.by_name.get(topic)
    groups = {} if found is None else found.groups
    return [_standing(name, group.group_partitions.get(partition), offset) for name, group in sorted(groups.items())]


def _standing(group: str, group_partition: GroupPartition | None, offset: int) -> GroupStanding:
    if group_partition is not None and offset in group_partition.done:
        return GroupStanding(group, 1, "done", "")
    entry = None if group_partition is None else group_partition.open.get(offset)
    if entry is None:
        return GroupStanding(group, 0, "ready", "")
    return GroupStanding(group, entry.attempts, _NAMES[entry.state], entry.last_error)
