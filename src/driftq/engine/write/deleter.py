"""The delete path (http-v0 §10): a delete is logged, synced in class `disk` and `fsync`, applied, and then answered.

A delete has a point in time: its frame contains the head at the call, and later records are never deleted, neither live
nor in replay.
"""

from collections.abc import Sequence

from msgspec import Struct

from driftq.engine.read.tag_lookup import Match, TagIndexes
from driftq.engine.state.control_frames import DeleteFrame, encode_body
from driftq.engine.state.topic import Topic
from driftq.engine.write.change_log import ChangeLog
from driftq.engine.write.state_changes import apply_delete, sources_of_delete
from driftq.errors import InvalidRequestError
from driftq.model.topic_config import Durability
from driftq.storage.blocks.frame import Kind
from driftq.system.runtime import Pending


class Deleted(Struct, frozen=True):
    """The result of a delete, with the state of the topic after it."""

    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    payload: int


def parse_match(match: object) -> Match:
    """Parse the match grammar: `["tag","Eq",v]`, `["tag","Glob","p*"]`, or a bare string, which is always exact."""
    if isinstance(match, str):
        return Match(match.encode(), False)
    if isinstance(match, list | tuple) and len(match) == 3 and all(isinstance(item, str) for item in match):
        field, operator, value = match
        if field == "tag" and operator == "Eq":
            return Match(value.encode(), False)
        if field == "tag" and operator == "Glob" and value.endswith("*"):
            return Match(value[:-1].encode(), True)
    raise InvalidRequestError(
        'match must be ["tag","Eq",tag], ["tag","Glob","prefix*"] or a string, which means ["tag","Eq",string]'
    )


class Deleter:
    """Deletes records by seq, by tag, or by both."""

    def __init__(self, change_log: ChangeLog, indexes: TagIndexes) -> None:
        self._change_log = change_log
        self._indexes = indexes

    def delete(
        self,
        topic: Topic,
        *,
        before_seq: int | None = None,
        match: Match | None = None,
        seqs: Sequence[int] | None = None,
        sync: bool | None = None,
    ) -> Pending[Deleted]:
        """Delete the selected records up to and including the head at the time of the call.

        With `sync=None`, only the classes `disk` and `fsync` wait for a sync.

        Raises SegmentUnavailableError, before anything is logged, when a block it needs cannot be read.
        """
        if before_seq is None and match is None and seqs is None:
            raise InvalidRequestError("a delete needs before_seq or match")
        topic.expire(self._change_log.time.now())
        body = DeleteFrame(
            bound=topic.head + 1,
            before=before_seq,
            tag=match.text if match is not None and not match.is_prefix else None,
            prefix=match.text if match is not None and match.is_prefix else None,
            seqs=None if seqs is None else list(seqs),
        )
        held = sources_of_delete(topic, self._indexes, body)

        def apply(op: int, ts: int) -> Deleted:
            deleted = apply_delete(topic, self._indexes, body, op, ts)
            held.clear()
            return Deleted(deleted, topic.earliest, topic.head, topic.count, topic.payload)

        # Without a cap or a TTL a delete commutes with later records, so they need not wait for its sync. A config
        # update in flight (`topic.in_flight.held`) may add a cap or TTL that applies before the delete.
        config = topic.config
        return self._change_log.control(
            topic,
            Kind.DELETE,
            encode_body(body),
            apply,
            sync=topic.durability in (Durability.DISK, Durability.FSYNC) if sync is None else sync,
            in_order=bool(config.cap_records or config.cap_bytes or config.ttl_ms or topic.in_flight.held),
            again=True,
        )
