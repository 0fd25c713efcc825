"""Publishes several blocks at once: the Append frames of a publication, closed by one Commit frame.

    collected → encoded, when no control operation holds the topic, and sent → committed according to the topic's class
    → visible, all of it at once

All frames are one submission, so they follow each other in one WAL file, or none is there. The Append frames have a
writer column: replay holds such frames back until it reads their Commit frame, and drops them if there is none. In an
`ephemeral` topic the Commit frame is the only one. In both cases the Commit frame contains the state that the
publishing feature keeps, and that feature applies it together with the records.

Unlike a small write, a publication is never applied before its frames are written: a control frame with a lower number
than the Commit frame may still be in flight, and after a checkpoint between the two, replay would skip it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from driftq.engine.load.topic_caps import check_caps
from driftq.engine.state.control_frames import COMMIT, CommitBody, WriterTag, encode_body
from driftq.engine.state.durable_feature import DurableState
from driftq.engine.state.topic import Topic
from driftq.engine.write.appender import AppendResult
from driftq.engine.write.change_log import ChangeLog
from driftq.engine.write.commit_point import SYNCED, WRITTEN, CommitPoint, SentRecords
from driftq.engine.write.state_changes import apply_append
from driftq.errors import DriftQError, InternalError, TopicNotFoundError
from driftq.model.limits import COMMIT_BYTES_MAX, OWN_BLOCK_RECORDS
from driftq.model.topic_config import Durability
from driftq.storage.blocks.block import Block, encode_block
from driftq.storage.blocks.frame import encode_control
from driftq.storage.blocks.rows import Rows
from driftq.storage.wal.group_commit import Shard, Submission
from driftq.system.file_thread import FileThread
from driftq.system.runtime import Pending, Runtime

_JOINED_RECORDS = 16_384
_JOINED_BYTES = 4 << 20
"""Consecutive smaller parts share a frame up to these limits."""
_INLINE_BYTES = 1 << 20
"""Publications up to this size are encoded on the loop, which takes about 1 ms."""


class Publication(Struct, eq=False):
    """One publication in flight, and the result that its caller waits for."""

    topic: Topic
    parts: Sequence[Rows]
    tag: WriterTag
    feature: DurableState
    synced: Callable[[], None]
    """Called when the Commit frame is on stable storage."""
    count: int
    payload_bytes: int
    pending: Pending[AppendResult]


class _Plan(NamedTuple):
    """The seqs and the stamp that a publication is encoded for."""

    first: int
    ts: int
    synced_to: int


class _SentPublication(SentRecords, eq=False):
    """A publication that has been sent: its records, and its Commit frame."""

    asked: Publication
    records: list[Rows | Block]
    body: bytes
    op: int
    ts: int
    settled: "Callable[[Publication, SentRecords, int, Submission | None, DriftQError | None], None]"

    def show(self) -> None:
        """Add all records to the topic, with the state of the feature."""
        for rows in self.records:
            apply_append(self.topic, rows, self.ts)
        self.topic.op = self.op
        self.topic.changed = True
        self.asked.feature.apply(COMMIT, self.topic, self.ts, self.body)

    def done(self, submission: Submission | None, error: DriftQError | None) -> None:
        """Pass the result on to the caller."""
        self.settled(self.asked, self, self.ts, submission, error)


class Publisher:
    """Accepts publications and sends them to the log."""

    def __init__(
        self,
        runtime: Runtime,
        change_log: ChangeLog,
        commit_point: CommitPoint,
        published: Callable[[Topic], None],
        when_synced: Callable[[Shard, int, Callable[[], None]], None],
    ) -> None:
        self._change_log = change_log
        self._commit_point = commit_point
        self._published = published
        self._when_synced = when_synced
        self._gathered: list[Publication] = []
        self._thread = FileThread(runtime, "driftq-encode")
        change_log.at_turn(self._send_gathered)

    def publish(
        self, topic: Topic, parts: Sequence[Rows], tag: WriterTag, feature: DurableState, synced: Callable[[], None]
    ) -> Pending[AppendResult]:
        """Accept a publication, or raise and change nothing. The caller has checked its bytes against the quota."""
        count, payload = sum(rows.count for rows in parts), sum(rows.payload_bytes for rows in parts)
        assert payload <= COMMIT_BYTES_MAX, "a publication fits into one WAL file"
        asked = Publication(topic, parts, tag, feature, synced, count, payload, Pending())
        topic.expire(self._change_log.time.now())
        check_caps(topic, asked)
        self._change_log.check_append(topic, payload)
        topic.in_flight.records += count
        topic.in_flight.payload += payload
        self._gathered.append(asked)
        self._change_log.schedule()
        return asked.pending

    def forget(self, topic: Topic, error: DriftQError) -> None:
        """Fail the publications that were collected for a deleted topic and not sent."""
        gone = [asked for asked in self._gathered if asked.topic is topic]
        self._gathered = [asked for asked in self._gathered if asked.topic is not topic]
        for asked in gone:
            self._fail(asked, error)

    def close(self) -> None:
        """Stop the thread that encodes publications."""
        self._thread.close()

    def _send_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        for asked in gathered:
            if asked.topic.in_flight.held:
                self._gathered.append(asked)
            else:
                self._send(asked)

    def _send(self, asked: Publication) -> None:
        topic = asked.topic
        shard = self._change_log.shard_of(topic)
        if shard.stopped is not None:
            self._fail(asked, shard.stopped)
            return
        plan = _Plan(topic.in_flight.next_seq, max(self._change_log.time.stamp(), topic.last_ts), shard.synced_to)
        if asked.payload_bytes <= _INLINE_BYTES or topic.durability is Durability.EPHEMERAL:
            self._submit(asked, plan, _encoded(asked, plan, logged=topic.durability is not Durability.EPHEMERAL))
        else:
            self._encode_aside(asked, plan)

    def _encode_aside(self, asked: Publication, plan: "_Plan") -> None:
        """Encode on a thread, so that the loop is not blocked. The topic is held meanwhile, so its seqs stay free."""
        topic = asked.topic
        topic.in_flight.held += 1

        def done(encoded: list[tuple[bytes | None, Rows | Block]] | None, error: Exception | None) -> None:
            topic.in_flight.held -= 1
            self._change_log.schedule()
            if topic.gone:
                self._fail(asked, TopicNotFoundError(topic.name))
            elif encoded is None:
                self._fail(asked, InternalError(f"the commit could not be encoded: {error}"))
            elif topic.in_flight.held or topic.in_flight.next_seq != plan.first or topic.last_ts > plan.ts:
                self._gathered.append(asked)  # another change came first: encode again, with the new seqs
            elif (stopped := self._change_log.shard_of(topic).stopped) is not None:
                self._fail(asked, stopped)
            else:
                self._submit(asked, plan, encoded)

        self._thread.submit(lambda: _encoded(asked, plan, logged=True), done)

    def _submit(self, asked: Publication, plan: "_Plan", encoded: list[tuple[bytes | None, Rows | Block]]) -> None:
        topic = asked.topic
        first, ts, synced_to = plan
        last = first + asked.count - 1
        body = encode_body(CommitBody(asked.tag.writer, asked.tag.batch, first, last))
        self._change_log.queue_first()
        op = topic.in_flight.next_op
        frames = [frame for frame, _ in encoded if frame is not None]
        frames.append(encode_control(COMMIT, body, topic_id=topic.id, op=op, ts=ts, synced_to=synced_to))
        topic.in_flight.next_op = op + 1
        sync = self._commit_point.must_sync(topic, first, last, self._change_log.overtakes_copies, reserve=False)
        sent = _SentPublication(topic, first, last, asked, [rows for _, rows in encoded], body, op, ts, self._committed)
        self._commit_point.send(sent, frames, SYNCED if sync else WRITTEN)

    def _committed(
        self, asked: Publication, sent: SentRecords, ts: int, submission: Submission | None, error: DriftQError | None
    ) -> None:
        if error is not None:
            self._fail(asked, error)
            return
        assert submission is not None, "every publication has a frame"
        topic = asked.topic
        shard = self._change_log.shard_of(topic)
        if topic.durability is not Durability.EPHEMERAL:
            topic.in_flight.note_unsynced(shard, submission.number, sent.last)
        self._when_synced(shard, submission.number, asked.synced)
        self._settle(asked)
        sync_ns = max(1, submission.sync_ns) if topic.durability is Durability.FSYNC else 0
        asked.pending.resolve(AppendResult(sent.first, sent.last, topic.head, ts, sync_ns=sync_ns))
        self._published(topic)

    def _fail(self, asked: Publication, error: DriftQError) -> None:
        self._settle(asked)
        asked.pending.fail(error)

    def _settle(self, asked: Publication) -> None:
        asked.topic.in_flight.records -= asked.count
        asked.topic.in_flight.payload -= asked.payload_bytes


def _encoded(asked: Publication, plan: _Plan, *, logged: bool) -> list[tuple[bytes | None, Rows | Block]]:
    """Return, for each frame, its bytes (None if records are not logged) and the records to apply."""
    writer = encode_body(asked.tag)
    found: list[tuple[bytes | None, Rows | Block]] = []
    place = plan.first
    for rows in _joined(asked.parts):
        if not logged:
            found.append((None, rows))
            continue
        frame = encode_block(
            rows, topic_id=asked.topic.id, first_seq=place, ts=plan.ts, synced_to=plan.synced_to, writer=writer
        )
        found.append((frame, Block.of(frame) if rows.count >= OWN_BLOCK_RECORDS else rows))
        place += rows.count
    return found


def _joined(parts: Iterable[Rows]) -> Iterator[Rows]:
    """Yield the same rows in fewer pieces: consecutive small parts are joined."""
    together: list[Rows] = []
    records = payload = 0
    for rows in parts:
        if together and (records + rows.count > _JOINED_RECORDS or payload + rows.payload_bytes > _JOINED_BYTES):
            yield Rows.joined(together)
            together, records, payload = [], 0, 0
        together.append(rows)
        records += rows.count
        payload += rows.payload_bytes
    if together:
        yield Rows.joined(together)
