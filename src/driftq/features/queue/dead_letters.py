"""Dead letters: jobs that were delivered too often move to another topic (http-v0 §14.8).

    copy appended → committed as the target's class demands, and on disk if the source's log could outlive it → deleted

After a crash a job is therefore in one of the topics or in both, and never lost. A job that cannot be copied stays in
its queue.
"""

from collections.abc import Sequence

from msgspec import json

from driftq.engine.engine import Engine
from driftq.engine.read.topic_page import Slice
from driftq.engine.state.topic import Topic
from driftq.errors import DriftQError
from driftq.model.topic_config import Durability
from driftq.storage.blocks.rows import Rows, Texts
from driftq.system.runtime import Pending

_Job = tuple[int, Slice, int]


async def move(
    engine: Engine, topic: Topic, slices: Sequence[Slice], deliveries: dict[int, int]
) -> tuple[list[int], int]:
    """Move jobs to the topic's dead-letter topic. Return the seqs that moved, and how many of them were live."""
    target = topic.config.dead_letter
    assert target is not None
    every = [(part.source.first_seq + row, part, row) for part in slices for row in part.rows]
    copied = await _copy(engine, topic, target, every, deliveries)
    if not copied:
        return [], 0
    try:
        await _synced(engine, target, topic)
        seqs = [seq for seq, _, _ in copied]
        deleted = await engine.delete_records(topic.name, seqs=seqs, sync=topic.durability is Durability.FSYNC)
    except DriftQError:
        return [], 0
    return seqs, deleted.deleted


async def _copy(engine: Engine, topic: Topic, target: str, jobs: list[_Job], deliveries: dict[int, int]) -> list[_Job]:
    """Append copies of the jobs, or of some of them if there is not enough room. Return the copied jobs."""
    try:
        await engine.append(target, _copies(topic, jobs, deliveries))
    except DriftQError:
        if len(jobs) == 1:
            return []
        half = len(jobs) // 2
        copied = await _copy(engine, topic, target, jobs[:half], deliveries)
        return copied + await _copy(engine, topic, target, jobs[half:], deliveries) if copied else []
    return jobs


async def _synced(engine: Engine, target: str, topic: Topic) -> None:
    """Wait until the copies are synced if they are in another log shard than the queue.

    One shard keeps its order in a crash; two shards do not.
    """
    copied = engine.catalog.find(target)
    change_log = engine.change_log
    if copied is None or copied.durability is Durability.EPHEMERAL:
        return
    shard = change_log.shard_of(copied)
    if shard is change_log.shard_of(topic):
        return
    waiting: Pending[None] = Pending()
    shard.sync(lambda _, error: waiting.resolve(None) if error is None else waiting.fail(error))
    change_log.schedule()
    await waiting


def _copies(topic: Topic, jobs: list[_Job], deliveries: dict[int, int]) -> Rows:
    data: list[bytes | None] = []
    tags: list[bytes | None] = []
    nodes: list[bytes | None] = []
    metas: list[bytes | None] = []
    for seq, part, row in jobs:
        source = part.source
        data += source.data(row, row + 1)
        tags += source.tags(row, row + 1) or [None]
        nodes += source.nodes(row, row + 1) or [source.batch_node]
        before = (source.metas(row, row + 1) or [None])[0]
        meta = json.decode(before) if before is not None else {}
        meta["$dead_letter_from"] = topic.name
        meta["$dead_letter_deliveries"] = str(deliveries[seq])
        meta["$dead_letter_src_seq"] = str(seq)
        metas.append(json.encode(meta))
    return Rows(Texts.of(data), tag=_column(tags), node=_column(nodes), meta=Texts.of(metas))


def _column(values: list[bytes | None]) -> Texts | None:
    return None if values.count(None) == len(values) else Texts.of(values)
