"""Positions of readers in a topic, and how a read starts.

A position contains the epoch of its topic. A reader of a topic that was deleted and created again under the same name
is therefore informed of it, whatever the seqs are. Several streams of one session share its positions. One step of a
feed reads and moves a position without interruption.
"""

from collections.abc import Mapping

from msgspec import Struct, structs

from driftq.codec.record_json import Fields
from driftq.engine.engine import Engine
from driftq.engine.read.topic_page import PageQuery
from driftq.engine.state.topic import Topic
from driftq.errors import InvalidRequestError, TopicNotFoundError
from driftq.model.limits import PAGE_BYTES, PAGE_RECORDS
from driftq.model.tombstone import Reason, Tombstone
from driftq.model.topic_config import Durability

_HIDDEN = (Reason.CAP, Reason.TTL, Reason.MIXED)


class Options(Struct, frozen=True, kw_only=True, cache_hash=True):
    """The size of batches, and which records and fields they contain."""

    limit: int = PAGE_RECORDS
    max_batch_bytes: int = PAGE_BYTES
    nodes: frozenset[bytes] = frozenset()
    tags: bool = False
    meta: bool = True
    data: bool = True
    strong: bool = False
    """Whether only records on stable storage are delivered."""
    hides_loss: bool = False
    """Whether records that caps or TTL removed before the first read are reported as `from_seq_too_old`."""

    def fields(self) -> Fields:
        """Return which fields of a record are rendered."""
        return Fields(tags=self.tags, meta=self.meta, data=self.data)

    def query(self, cursor: int, up_to: int | None) -> PageQuery:
        """Return the query for a page after a cursor."""
        return PageQuery(cursor, self.limit, self.nodes, self.max_batch_bytes, up_to)

    def first_loss(self, tombstone: Tombstone) -> Tombstone:
        """Return the tombstone to report for a loss before the first read."""
        if self.hides_loss and tombstone.reason in _HIDDEN:
            return structs.replace(tombstone, reason=Reason.FROM_SEQ_TOO_OLD)
        return tombstone


class ReadPosition:
    """A cursor, the epoch of the topic that it belongs to, and the last head."""

    __slots__ = ("cursor", "epoch", "head")

    def __init__(self, cursor: int, epoch: int, head: int) -> None:
        self.cursor = cursor
        self.epoch = epoch
        self.head = head
        """The head of the topic when it was last read."""


class ReadStart(Struct, frozen=True):
    """Where a read starts: after a seq of an epoch, at the end, or at a time."""

    from_seq: int = 0
    tail: bool = False
    from_ts: int | None = None
    epoch: int | None = None


class StartedRead(Struct, frozen=True):
    """A position to start from, with the head, earliest seq and epoch of the topic at that moment."""

    place: ReadPosition
    head_seq: int
    earliest_seq: int
    epoch: int


async def begin(
    engine: Engine, starts: Mapping[str, ReadStart], *, lenient: bool, strong: bool
) -> dict[str, StartedRead]:
    """Return the starting positions of these topics, ordered by name.

    Raise TopicNotFoundError for a missing topic; with `lenient`, leave it out instead.
    """
    known = {name: start for name, start in sorted(starts.items()) if _is_there(engine, name, lenient=lenient)}
    begun: dict[str, StartedRead] = {}
    for name, start in known.items():
        try:
            topic = await engine.fresh(name)
            cursor = start.from_seq
            if start.from_ts is not None:
                cursor = await engine.seek(name, start.from_ts)
                topic = engine.topic(name)
        except TopicNotFoundError:
            if lenient:
                continue
            raise
        if strong:
            _check_syncs(topic)
        epoch = topic.id if start.epoch is None else start.epoch
        if start.tail or (start.epoch == topic.id and cursor > topic.head and topic.keeps_head):
            cursor = topic.head  # above the head of the same epoch the reader has missed nothing
        begun[name] = StartedRead(ReadPosition(cursor, epoch, topic.head), topic.head, topic.earliest, topic.id)
    return begun


def _is_there(engine: Engine, name: str, *, lenient: bool) -> bool:
    if engine.catalog.find(name) is not None:
        return True
    if not lenient:
        raise TopicNotFoundError(name)
    return False


def _check_syncs(topic: Topic) -> None:
    if topic.durability is Durability.EPHEMERAL:
        raise InvalidRequestError(
            f"topic {topic.name!r} is ephemeral: its records are never synced, so none could be delivered"
        )
