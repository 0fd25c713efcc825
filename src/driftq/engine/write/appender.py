"""The write path: idempotency key, limits, seqs and stamp, frame, commit point, apply, answer.

Small writes of one loop turn to one topic share a frame: one stamp, contiguous seqs, each caller its own range. A write
with an idempotency key, a node of its own or many records keeps its own frame. Consecutive frames of single records
with keys are submitted together, except in class `memory`, whose frames are read one by one after a start
(`storage/wal/memory_spans`): such writes share stamp, commit point and head too.

A `disk` write within the reservation of its topic (`engine/write/seq_reservations`) and a `memory` write become visible
and are acked when their frame is passed to the log writer: if only the server process dies, the writer still writes it.
Records whose frame has not been passed on are visible to no reader.

If the shard's last write has failed, for example on a full disk, no write is acked before it is in the file: `disk` and
`memory` writes are refused like all others until a write succeeds.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol, cast

from msgspec import Struct

from driftq.engine.load.quota import Quota
from driftq.engine.load.topic_caps import check_caps, check_size
from driftq.engine.state.topic import Topic
from driftq.engine.write.change_log import ChangeLog
from driftq.engine.write.commit_point import QUEUED, SYNCED, WRITTEN, CommitPoint, SentRecords
from driftq.engine.write.state_changes import Single, apply_append, apply_singles
from driftq.errors import DriftQError
from driftq.model.limits import (
    BLOCK_BYTES_MAX,
    BLOCK_RECORDS_MAX,
    OWN_BLOCK_RECORDS,
)
from driftq.model.topic_config import Discard, Durability, TopicConfig
from driftq.storage.blocks.block import Block, encode_block
from driftq.storage.blocks.rows import Row, Rows
from driftq.storage.blocks.single_record_encoder import encode_single
from driftq.storage.wal.group_commit import Submission
from driftq.system.runtime import Pending

# Looking up an enum member costs as much as a function call.
_EPHEMERAL, _MEMORY, _DISK, _FSYNC = Durability.EPHEMERAL, Durability.MEMORY, Durability.DISK, Durability.FSYNC
_REJECT = Discard.REJECT


class AppendResult(Struct, frozen=True):
    """The result of a write, as its caller gets it."""

    first_seq: int
    last_seq: int
    head_seq: int
    ts: int
    created: bool = False
    deduped: bool = False
    sync_ns: int = 0
    """How long its sync took in ns: above 0 in class `fsync`, 0 in every other."""
    synced_seq: int | None = None
    """The highest seq of the topic on stable storage at the time of the answer; None for `ephemeral` topics."""

    @property
    def count(self) -> int:
        """Return the number of records of this write."""
        return self.last_seq - self.first_seq + 1


class FrameCommitted(Struct, frozen=True):
    """The part of the result that all writes of one frame share."""

    head_seq: int
    ts: int
    sync_ns: int
    synced_seq: int | None


class WriteCaller(Protocol):
    """A caller that gets the result of its write in parts, and makes no `AppendResult` of them."""

    def answer(self, first_seq: int, count: int, committed: FrameCommitted) -> None:
        """Take the result of a committed write: its records have `count` seqs from `first_seq` on."""

    def fail(self, error: BaseException) -> None:
        """Take the error of a write that failed."""


class PendingWrite(Pending[AppendResult], eq=False, kw_only=True):
    """One caller's records in flight, and the result that the caller waits for.

    With a `WriteCaller`, it is settled only for later writes with the same idempotency key, which get the same result.
    """

    rows: Rows | Row
    key: bytes | None = None
    created: bool = False
    caller: WriteCaller | None = None

    def fail(self, error: BaseException) -> None:
        """Settle with the error of a write that failed."""
        if self.caller is not None:
            self.caller.fail(error)
            if not self.awaited:
                return
        super().fail(error)

    def answer(self, first_seq: int, committed: FrameCommitted) -> None:
        """Settle with the seqs that the records got, from `first_seq` on."""
        count = self.rows.count
        if self.caller is not None:
            self.caller.answer(first_seq, count, committed)
            if not self.awaited:
                return
        last_seq, head_seq, ts = first_seq + count - 1, committed.head_seq, committed.ts
        sync_ns, synced = committed.sync_ns, committed.synced_seq
        self.resolve(AppendResult(first_seq, last_seq, head_seq, ts, self.created, False, sync_ns, synced))


class Appender:
    """Collects the writes of a loop turn and sends them to the log."""

    def __init__(
        self, change_log: ChangeLog, commit_point: CommitPoint, published: Callable[[Topic], None], quota: Quota
    ) -> None:
        self._change_log = change_log
        self._commit_point = commit_point
        self._published = published
        self._quota = quota
        self._gathered: dict[Topic, list[PendingWrite]] = {}
        self._keys: dict[tuple[int, bytes], Pending[AppendResult]] = {}
        change_log.at_turn(self._send_gathered)

    def append(self, topic: Topic, rows: Rows | Row, key: bytes | None, *, created: bool) -> Pending[AppendResult]:
        """Accept a write, or raise and change nothing."""
        if key is not None:
            earlier = self._same_key(topic, key)
            if earlier is not None:
                return earlier
        write = PendingWrite(rows=rows, key=key, created=created)
        self.take(topic, write)
        return write

    def take(self, topic: Topic, write: PendingWrite) -> None:
        """Accept a write whose key, if it has one, is not in use (`knows`), or raise and change nothing."""
        rows = write.rows
        config = topic.config
        if config.ttl_ms:
            topic.expire(self._change_log.time.now())
        if config.discard is _REJECT:
            check_caps(topic, rows)
        payload = rows.payload_bytes
        quota = self._quota
        if quota.limited:
            quota.check(payload)
        if topic.durability is not _EPHEMERAL and not write.created:
            # The frame of a topic that this write creates is in the queue already; a refusal would leave an empty
            # topic.
            self._change_log.check_append(topic)
        # Inlined `count_in`, because every write runs this.
        flight = topic.in_flight
        flight.records += rows.count
        flight.payload += payload
        quota.reserved += payload
        gathered = self._gathered.get(topic)
        if gathered is None:
            self._gathered[topic] = [write]
        else:
            gathered.append(write)
        if write.key is not None:
            self._keys[topic.id, write.key] = write
        self._change_log.schedule()

    def forget(self, topic: Topic, error: DriftQError) -> None:
        """Fail the writes that were collected for a deleted topic and not sent."""
        for write in self._gathered.pop(topic, ()):
            self.fail(topic, [write], error)

    def knows(self, topic: Topic, key: bytes) -> bool:
        """Whether a write with this key is a repeat of one that is committed or in flight."""
        if (topic.id, key) in self._keys:
            return True
        return key in topic.keys and topic.keys.find(key, self._kept_from(topic)) is not None

    def _kept_from(self, topic: Topic) -> int:
        return self._change_log.time.kept_from(topic.config.idempotency_window_ms)

    def _same_key(self, topic: Topic, key: bytes) -> Pending[AppendResult] | None:
        """Return the result of an earlier write with this key, committed or in flight, or None."""
        found = topic.keys.find(key, self._kept_from(topic))
        answer: Pending[AppendResult] = Pending()
        if found is not None:
            first, count = found
            last = first + count - 1
            ts = self._change_log.time.wall()
            answer.resolve(AppendResult(first, last, last, ts, deduped=True, synced_seq=self._synced_seq(topic)))
            return answer
        winner = self._keys.get((topic.id, key))
        if winner is None:
            return None

        def settle(done: Pending[AppendResult]) -> None:
            if done.error is not None:
                answer.fail(done.error)
            else:
                won = done.result()
                first, last = won.first_seq, won.last_seq
                answer.resolve(AppendResult(first, last, last, won.ts, deduped=True, synced_seq=won.synced_seq))

        winner.then(settle)
        return answer

    def check_new(self, config: TopicConfig, rows: Rows | Row) -> None:
        """Raise if the topic that a write is about to create could not hold the write."""
        check_size(config, rows)
        if config.durability is not _EPHEMERAL:
            self._change_log.unsealed.check()
        self._quota.check(rows.payload_bytes)

    def count_in(self, topic: Topic, records: int, payload: int) -> None:
        """Add (or, with negative numbers, remove) in-flight records to the amounts that caps and quota check."""
        topic.in_flight.records += records
        topic.in_flight.payload += payload
        self._quota.reserved += payload

    def _send_gathered(self) -> None:
        gathered = self._gathered
        self._gathered = {}
        for topic, writes in gathered.items():
            if topic.in_flight.held:
                self._gathered[topic] = writes
            else:
                self._send_all(topic, writes)

    def _send_all(self, topic: Topic, writes: list[PendingWrite]) -> None:
        together: list[PendingWrite] = []
        records = payload = 0
        for write in writes:
            rows = write.rows
            keyed = write.key is not None
            alone = (
                rows.batch_node is not None
                or rows.count >= OWN_BLOCK_RECORDS
                or (keyed and (type(rows) is not Row or topic.durability is _MEMORY))
            )
            full = records + rows.count > BLOCK_RECORDS_MAX or payload + rows.payload_bytes > BLOCK_BYTES_MAX
            if together and (alone or full or keyed is not (together[0].key is not None)):
                self._send(topic, together)
                together, records, payload = [], 0, 0
            if alone:
                self._send(topic, [write])
            else:
                together.append(write)
                records += rows.count
                payload += rows.payload_bytes
        if together:
            self._send(topic, together)

    def _send(self, topic: Topic, writes: list[PendingWrite]) -> None:
        """Submit one frame, or one for each record with a key: seqs, stamp, and the commit point of the class."""
        shard = self._change_log.shard_of(topic)
        if shard.stopped is not None and topic.durability is not _EPHEMERAL:
            self.fail(topic, writes, shard.stopped)  # the shard was not stopped when they were collected
            return
        first = topic.in_flight.next_seq
        ts = max(self._change_log.time.stamp(), topic.last_ts)
        durability = topic.durability
        frames, records = self._framed(topic, writes, first, ts, shard.synced_to)
        last = first + (len(writes) if records is None else records.count) - 1
        when = QUEUED
        if self._commit_point.must_sync(topic, first, last, self._change_log.overtakes_copies):
            when = SYNCED
        elif frames and shard.failing is not None:
            when = WRITTEN  # while log writes fail, no write is acked when its frame is only queued
        # Records of class `memory` may be loaded after the server is ready again.
        late = (topic.id, ts) if durability is _MEMORY else None
        self._commit_point.send(
            _SentWrites(topic, first, last, self, self._change_log, writes, records, ts), frames, when, late
        )

    def _framed(
        self, topic: Topic, writes: list[PendingWrite], first: int, ts: int, synced_to: int
    ) -> tuple[list[bytes], Rows | Block | None]:
        """Return the frames of writes (none in class `ephemeral`) and their records; None if they are `Row`s."""
        logged = topic.durability is not _EPHEMERAL
        at = topic.id
        if (len(writes) == 1 or writes[0].key is not None) and type(writes[0].rows) is Row:
            if not logged:
                return [], None
            singles = cast("list[tuple[Row, bytes | None]]", [(write.rows, write.key) for write in writes])
            return [
                encode_single(row, topic_id=at, first_seq=seq, ts=ts, synced_to=synced_to, key=key)
                for seq, (row, key) in enumerate(singles, first)
            ], None
        rows = Rows.joined([write.rows for write in writes])
        if not logged:
            return [], rows
        frame = encode_block(rows, topic_id=at, first_seq=first, ts=ts, synced_to=synced_to, key=writes[0].key)
        return [frame], Block.of(frame) if rows.count >= OWN_BLOCK_RECORDS else rows

    def answer(self, topic: Topic, writes: list[PendingWrite], first: int, ts: int, sync_ns: int) -> None:
        """Answer writes whose records are visible now."""
        committed = FrameCommitted(topic.head, ts, sync_ns, self._synced_seq(topic))
        self._settle(topic, writes)
        for write in writes:
            write.answer(first, committed)
            first += write.rows.count
        self._published(topic)

    def _synced_seq(self, topic: Topic) -> int | None:
        if topic.durability is _EPHEMERAL:
            return None
        return topic.in_flight.synced(self._change_log.shard_of(topic))

    def fail(self, topic: Topic, writes: list[PendingWrite], error: DriftQError) -> None:
        """Fail writes that were accepted, none of whose records is visible."""
        self._settle(topic, writes)
        for write in writes:
            write.fail(error)

    def _settle(self, topic: Topic, writes: list[PendingWrite]) -> None:
        """Remove these writes from the in-flight counters."""
        records = payload = 0
        for write in writes:
            records += write.rows.count
            payload += write.rows.payload_bytes
            if write.key is not None:
                self._keys.pop((topic.id, write.key), None)
        self.count_in(topic, -records, -payload)


class _SentWrites(SentRecords, eq=False):
    """The writes of one frame, or of consecutive frames of single records, which `records` is None for."""

    appender: Appender
    change_log: ChangeLog
    writes: list[PendingWrite]
    records: Rows | Block | None
    ts: int

    def show(self) -> None:
        """Add the records to the topic."""
        if self.records is None:
            apply_singles(self.topic, cast("list[Single]", self.writes), self.ts)
        else:
            apply_append(self.topic, self.records, self.ts, self.writes[0].key)

    def done(self, submission: Submission | None, error: DriftQError | None) -> None:
        """Answer the writes, or fail them."""
        topic, answer = self.topic, self.appender.answer
        if error is not None:
            self.appender.fail(topic, self.writes, error)
        elif submission is None:
            self.change_log.after_flush(partial(answer, topic, self.writes, self.first, self.ts, 0))
        else:
            if topic.durability is not _EPHEMERAL:
                topic.in_flight.note_unsynced(self.change_log.shard_of(topic), submission.number, self.last)
            # A `disk` write that waited for a reservation was not promised a sync, so its answer reports none.
            sync_ns = max(1, submission.sync_ns) if topic.durability is _FSYNC else 0
            answer(topic, self.writes, self.first, self.ts, sync_ns)

    def lost(self) -> None:
        """Report the loss to the routers into the topic."""
        self.change_log.on_lost(self.topic, self.first)
