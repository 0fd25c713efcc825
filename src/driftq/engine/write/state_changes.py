"""The only code that changes what a topic shows: one function per frame kind, used live and in replay.

A live write calls these functions at its commit point, replay when it reads the frame. Both pass the frame's own stamp
as the current time, so that the records which TTL and caps remove depend on the log alone.
"""

from array import array
from collections.abc import Sequence
from typing import Protocol

from driftq.engine.read.seq_lookup import parts_of
from driftq.engine.read.tag_lookup import Match, TagIndexes, find_tagged, find_tagged_in
from driftq.engine.state.block_cache import unavailable
from driftq.engine.state.control_frames import DeleteFrame, FloorsBody, HoleBody, TopicFrame
from driftq.engine.state.record_log import LogPart
from driftq.engine.state.topic import Topic
from driftq.model.tombstone import Reason
from driftq.model.topic_config import Durability
from driftq.storage.blocks.block import Block, RowSource
from driftq.storage.blocks.rows import Row, Rows


class Single(Protocol):
    """A write of one record that has only data and perhaps a tag."""

    @property
    def key(self) -> bytes | None:
        """Return the idempotency key of the write, or None if it has none."""
        ...

    @property
    def rows(self) -> Row:
        """Return the one record of the write."""
        ...


def apply_append(topic: Topic, rows: Rows | Block, ts: int, key: bytes | None = None) -> None:
    """Add the records of one frame at the head. A `Block` becomes a block of the topic, rows join the open block."""
    topic.expire_at(ts)
    if key is not None:
        lasts = topic.durability is not Durability.EPHEMERAL
        topic.keys.remember(key, ts, topic.head + 1, rows.count, lasts=lasts)
        topic.forget_keys(ts)
    topic.add(rows, ts)
    topic.evict()


def apply_singles(topic: Topic, singles: Sequence[Single], ts: int) -> None:
    """Add the records of frames that have one record each and the same stamp, as `apply_append` would one by one.

    Expiring once is enough, because all have the same stamp. Their keys must differ.
    """
    topic.expire_at(ts)
    capped = topic.config.cap_records or topic.config.cap_bytes
    lasts = topic.durability is not Durability.EPHEMERAL
    keyed = False
    for single in singles:
        key, row = single.key, single.rows
        if key is not None:
            topic.keys.remember(key, ts, topic.head + 1, 1, lasts=lasts)
            keyed = True
        topic.add_one(row.data, row.tag, ts)
        if capped:
            topic.evict()
    if keyed:
        topic.forget_keys(ts)


def apply_one(topic: Topic, data: bytes, tag: bytes | None, ts: int) -> None:
    """Do the same as `apply_append` for a record with only data and tag; faster, for a replay of millions."""
    if topic.config.ttl_ms:
        topic.expire_at(ts)
    topic.add_one(data, tag, ts)
    if topic.config.cap_records or topic.config.cap_bytes:
        topic.evict()


def apply_run(topic: Topic, rows: Rows, times: "array[int]") -> None:
    """Do the same as `apply_one` for many records of a topic without TTL and caps."""
    config = topic.config
    assert config.ttl_ms == config.cap_records == config.cap_bytes == 0
    topic.add(rows, times[-1], times)


def apply_topic(topic: Topic, body: TopicFrame, op: int, ts: int, *, at_most: bool = True) -> None:
    """Apply a new or changed config: first expire under the old config, then apply retention under the new one.

    `at_most`: missing seqs up to the head in the frame may never have been given out.
    """
    changed_class = body.config.resolved_durability is not topic.durability
    topic.expire_at(ts)
    mixes = changed_class and Durability.EPHEMERAL in (body.config.resolved_durability, topic.durability)
    if mixes:
        topic.seal_active()
    # Live, the head is there already. In replay, seqs may be missing that the old durability class did not keep.
    topic.skip_to(body.head, Reason.CRASH if topic.durability is Durability.DISK else None, at_most=at_most)
    if mixes:
        topic.mixed_to = topic.head
    topic.configure(body.config)
    topic.created_ts = body.created_ts
    _raise_floors(topic, body)
    topic.reserved = body.reserved
    topic.in_flight.reserve_asked = body.reserved
    topic.op = op
    topic.changed = True
    topic.expire_at(ts)
    topic.evict()


def apply_delete(topic: Topic, indexes: TagIndexes, body: DeleteFrame, op: int, ts: int) -> int:
    """Delete the records that a delete frame names, up to the head at the time of its call.

    Return how many of them were live before.
    """
    topic.expire_at(ts)
    topic.op = op
    topic.changed = True
    bound = body.bound if body.before is None else min(body.bound, body.before)
    deleted = 0
    if body.seqs is not None:
        for part, rows in parts_of(topic, sorted({seq for seq in body.seqs if seq < bound})):
            deleted += topic.kill(part, rows)
    elif body.tag is not None or body.prefix is not None:
        for part, rows in list(find_tagged(topic, indexes, _match_of(body), bound)):
            deleted += topic.kill(part, rows)
    elif body.before is not None:
        deleted += topic.drop_below(bound)
    return deleted


def sources_of_delete(topic: Topic, indexes: TagIndexes, body: DeleteFrame) -> list[RowSource]:
    """Return the rows that `apply_delete` needs, so that a delete is refused before it is logged, not after.

    While the caller holds them, `apply_delete` finds them in memory. Raises SegmentUnavailableError.
    """
    bound = body.bound if body.before is None else min(body.bound, body.before)
    if body.seqs is not None:
        parts = [part for part, _ in parts_of(topic, sorted({seq for seq in body.seqs if seq < bound}))]
    elif body.tag is not None or body.prefix is not None:
        parts = _tagged_parts(topic, indexes, _match_of(body), bound)
    else:
        first = next(topic.parts(max(bound, topic.earliest)), None)
        parts = [] if first is None or first.first_seq >= bound else [first]
    held = []
    for part in parts:
        try:
            held.append(topic.source(part))
        except OSError as error:
            raise unavailable(error, cold=part.segment.cold) from error
    return [source for source in held if source is not None]


def _tagged_parts(topic: Topic, indexes: TagIndexes, match: Match, bound: int) -> list[LogPart]:
    parts = []
    for segment in list(topic.segments):
        try:
            # Blocks that are in no file yet are in memory.
            if segment.sealed:
                parts += [part for part, _ in find_tagged_in(topic, segment, indexes, match, bound)]
        except OSError as error:
            raise unavailable(error, cold=segment.cold) from error
    return parts


def _match_of(body: DeleteFrame) -> Match:
    return Match(body.tag, False) if body.tag is not None else Match(body.prefix or b"", True)


def apply_hole(topic: Topic, body: HoleBody, op: int, ts: int) -> None:
    """Turn a block that was found damaged into a hole."""
    topic.expire_at(ts)
    topic.op = op
    topic.lose(max(body.first, topic.earliest), body.last, body.reason)


def apply_floors(topic: Topic, body: FloorsBody, op: int) -> None:
    """Raise the floors to logged values that replay could not compute. Later frames may be applied already."""
    topic.op = max(topic.op, op)
    topic.changed = True
    _raise_floors(topic, body)


def _raise_floors(topic: Topic, body: FloorsBody | TopicFrame) -> None:
    # After damage the head may be lower than it was, and no floor is above the head.
    topic.cap_lost = max(topic.cap_lost, min(body.cap_lost, topic.head))
    topic.ttl_lost = max(topic.ttl_lost, min(body.ttl_lost, topic.head))
    topic.holes.forget_before(topic.evict_floor)
    topic.drop_below(body.earliest)
