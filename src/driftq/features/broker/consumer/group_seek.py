"""Seek: moves a group to another position with one logged record (http-v1 §22). Leases end, and attempts start again.

While the record is being logged, no outcome of an earlier delivery is logged: an ack waits, and then finds its
delivery ended. Every message that is done after a seek was therefore delivered after it.
"""

from typing import NamedTuple

from msgspec import Struct

from driftq.engine.engine import Engine
from driftq.errors import InvalidRequestError, PreconditionError
from driftq.features.broker.protocols import Registry
from driftq.features.broker.state.broker_frames import GroupKind, Landing, SeekFrame, encode
from driftq.features.broker.state.broker_state import BrokerState, BrokerTopic
from driftq.features.broker.state.group import ConsumerGroup
from driftq.features.broker.state.stored_messages import read_page
from driftq.system.runtime import Pending, Runtime

_PAGE = 256


class Moved(NamedTuple):
    """The change of a seek in one partition."""

    partition: int
    floor_before: int
    floor_after: int


async def seek(
    engine: Engine,
    runtime: Runtime,
    broker_state: BrokerState,
    registry: Registry,
    name: str,
    group: str,
    floors: dict[int, int],
    *,
    dry_run: bool,
    force: bool,
) -> list[Moved]:
    """Move a group to the first message at or above an offset, per partition."""
    topic = broker_state.find(name)
    if any(not 0 <= partition < topic.partitions for partition in floors):
        raise InvalidRequestError("partition out of range")
    known = topic.groups.get(group)
    if known is not None and known.streams and not force:
        raise PreconditionError("the group has live streams")
    topic.pinned += 1
    try:
        if topic.trimming is not None:
            await topic.trimming
        landings = await _landings(engine, runtime, topic, floors)
        if not dry_run:
            await _before(topic, group, landings)
        known = topic.groups.get(group)
        moved = []
        for landing in landings:
            group_partition = None if known is None else known.group_partitions.get(landing.partition)
            moved.append(
                Moved(landing.partition, -1 if group_partition is None else group_partition.done.floor, landing.floor)
            )
        if not dry_run and landings:
            await _move(broker_state, registry, topic, broker_state.group(topic, group), landings)
    finally:
        topic.pinned -= 1
    return moved


async def _before(topic: BrokerTopic, group: str, landings: list[Landing]) -> None:
    """Wait for other seeks in the same partitions that are being logged."""
    while (known := topic.groups.get(group)) is not None:
        group_partitions = [known.group_partitions.get(landing.partition) for landing in landings]
        under_way = next(
            (
                group_partition.moving
                for group_partition in group_partitions
                if group_partition is not None and group_partition.moving is not None
            ),
            None,
        )
        if under_way is None:
            return
        await under_way


async def _move(
    broker_state: BrokerState, registry: Registry, topic: BrokerTopic, group: ConsumerGroup, landings: list[Landing]
) -> None:
    group_partitions = [group.group_partition(landing.partition) for landing in landings]
    over: Pending[None] = Pending()
    for group_partition in group_partitions:
        group_partition.moving = over
    try:
        await broker_state.log(topic, GroupKind.SEEK, encode(SeekFrame(group.name, landings)))
        registry.voided(topic.name, group.name)
    finally:
        for group_partition in group_partitions:
            group_partition.moving = None
            group.stir(group_partition.partition)
        over.resolve(None)


class _Below(Struct):
    """The totals of one partition below an offset."""

    offset: int
    floor: int = -1
    count: int = 0
    size: int = 0


async def _landings(engine: Engine, runtime: Runtime, topic: BrokerTopic, floors: dict[int, int]) -> list[Landing]:
    """Return the state of each partition when all messages below its offset are done.

    Those messages are read, because their bytes count too.
    """
    index = topic.index
    below: dict[int, _Below] = {}
    for partition, offset in floors.items():
        part = index.parts[partition]
        if offset >= index.head:
            below[partition] = _Below(0, index.last(partition), part.count, part.size)
        else:
            below[partition] = _Below(offset)
    reached, end = index.start, max((found.offset for found in below.values()), default=0)
    while reached < end:
        begin = reached
        page, reached = await read_page(engine, topic.log, begin, min(begin + _PAGE, end))
        sizes = {found.offset: found.message.size for found in page}
        for offset in range(begin, reached):
            partition_at = index.partition_at(offset)
            found = None if partition_at is None else below.get(partition_at)
            if found is not None and offset < found.offset:
                found.floor = offset
                found.count += offset in sizes
                found.size += sizes.get(offset, 0)
        await _turn(runtime)
    return [Landing(partition, found.floor, found.count, found.size) for partition, found in sorted(below.items())]


def _turn(runtime: Runtime) -> Pending[None]:
    """Return a Pending that settles in the next turn of the event loop, so that other work can run between messages."""
    over: Pending[None] = Pending()
    runtime.soon(lambda: over.resolve(None))
    return over
