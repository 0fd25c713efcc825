"""Where a reader of one topic stands, and how it begins.

A place carries the epoch of its topic: a topic of the same name that was made anew is told as such, whatever its seqs.
Several streams of one session share its places; a step of a feed reads and moves one without anybody in between.
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
    """The shape of batches, and which records are in them."""

    limit: int = PAGE_RECORDS
    max_batch_bytes: int = PAGE_BYTES
    nodes: frozenset[bytes] = frozenset()
    tags: bool = False
    meta: bool = True
    data: bool = True
    strong: bool = False
    """Only what is on stable storage?"""
    hides_loss: bool = False
    """Is what cap and TTL took before the first read told as `from_seq_too_old`?"""

    def fields(self) -> Fields:
        """The same for rendering."""
        return Fields(tags=self.tags, meta=self.meta, data=self.data)

    def query(self, cursor: int, up_to: int | None) -> PageQuery:
        """The same for reading after a cursor."""
        return PageQuery(cursor, self.limit, self.nodes, self.max_batch_bytes, up_to)

    def first_loss(self, tombstone: Tombstone) -> Tombstone:
        """Return a loss before the first read as this reader is told of it."""
        if self.hides_loss and tombstone.reason in _HIDDEN:
            return structs.replace(tombstone, reason=Reason.FROM_SEQ_TOO_OLD)
        return tombstone


class ReadPosition:
    """A cursor, and which life of the name it is about."""

    __slots__ = ("cursor", "epoch", "head")

    def __init__(self, cursor: int, epoch: int, head: int) -> None:
        self.cursor = cursor
        self.epoch = epoch
        self.head = head
        """The last head that was seen."""


class ReadStart(Struct, frozen=True):
    """Where to begin: at a seq of an epoch, at the end, or at a time."""

    from_seq: int = 0
    tail: bool = False
    from_ts: int | None = None
    epoch: int | None = None


class StartedRead(Struct, frozen=True):
    """A place to begin at, and how its topic stood."""

    place: ReadPosition
    head_seq: int
    earliest_seq: int
    epoch: int


async def begin(
    engine: Engine, starts: Mapping[str, ReadStart], *, lenient: bool, strong: bool
) -> dict[str, StartedRead]:
    """The places of these topics, in the order of their names. Raises unless all are there, or `lenient` drops them."""
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
            cursor = topic.head  # above the head of the same epoch nothing was missed
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
            f"topic {topic.name!r} is ephemeral: nothing of it is ever synced, so nothing could be delivered"
        )
