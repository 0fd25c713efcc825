"""Seek: put a group somewhere else, as one logged record (http-v1 §22). Leases end, and attempts start anew."""

from typing import NamedTuple

from driftq.engine.engine import Engine
from driftq.errors import InvalidRequestError, PreconditionError
from driftq.groups.book import Book, BrokerTopic
from driftq.groups.frames import GroupKind, Landing, SeekBody, encode
from driftq.groups.ports import Registry
from driftq.groups.stored import wait_for_message


class Moved(NamedTuple):
    """What a seek did to one partition."""

    partition: int
    floor_before: int
    floor_after: int


async def seek(
    engine: Engine,
    book: Book,
    registry: Registry,
    name: str,
    group: str,
    floors: dict[int, int],
    *,
    dry_run: bool,
    force: bool,
) -> list[Moved]:
    """Put a group before the first message at or above an offset, per partition."""
    topic = book.find(name)
    if any(not 0 <= partition < topic.partitions for partition in floors):
        raise InvalidRequestError("partition out of range")
    known = topic.groups.get(group)
    if known is not None and known.streams and not force:
        raise PreconditionError("the group has live streams")
    topic.pinned += 1
    try:
        if topic.trimming is not None:
            await topic.trimming
        landings = [await _landing(engine, topic, partition, offset) for partition, offset in sorted(floors.items())]
        moved = []
        for landing in landings:
            lane = None if known is None else known.lanes.get(landing.partition)
            moved.append(Moved(landing.partition, -1 if lane is None else lane.done.floor, landing.floor))
        if not dry_run and landings:
            found = book.group(topic, group)
            await book.log(topic, GroupKind.SEEK, encode(SeekBody(group, landings)))
            registry.voided(name, group)
            for landing in landings:
                found.stir(landing.partition)
    finally:
        topic.pinned -= 1
    return moved


async def _landing(engine: Engine, topic: BrokerTopic, partition: int, offset: int) -> Landing:
    """What is done when everything below an offset is."""
    index = topic.index
    part = index.parts[partition]
    floor, count, size = -1, 0, 0
    if offset >= index.head:
        floor, count, size = index.last(partition), part.count, part.size
    else:
        at = index.at_or_after(partition, 0)
        while at is not None and at < offset:
            message = await wait_for_message(engine, topic.log, at)
            if message is not None:
                count += 1
                size += message.size
            floor = at
            at = index.at_or_after(partition, at + 1)
    return Landing(partition, floor, count, size)
