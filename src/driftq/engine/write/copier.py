"""Copies into a topic: the write path of records that are not logged, because replay makes them again.

    room → seqs, stamp → at once, or after the changes that the topic waits for → visible

Invariants
- A copy and the move of its router's cursor are one change: `done` is called in the turn that makes the records
  visible, before readers are woken.
- `disk` seqs of copies are reserved like those of writes: a reader who has seen a record never sees another one with
  the same seq.
- If the source records do not survive a restart, copies are logged like writes, followed by the frame of the cursor in
  the same submission.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from driftq.engine.load.quota import Quota
from driftq.engine.state.topic import Topic
from driftq.engine.write.appender import Appender
from driftq.engine.write.change_log import ChangeLog
from driftq.engine.write.commit_point import QUEUED, SYNCED, CommitPoint, SentRecords
from driftq.engine.write.state_changes import apply_append
from driftq.errors import DriftQError
from driftq.model.limits import OWN_BLOCK_RECORDS
from driftq.model.topic_config import Discard, Durability
from driftq.storage.blocks.block import Block, encode_block
from driftq.storage.blocks.frame import encode_control
from driftq.storage.blocks.rows import Rows
from driftq.storage.wal.group_commit import Submission

Done = Callable[[DriftQError | None], None]


class CopyNote(NamedTuple):
    """A control frame that is logged with copies."""

    kind: int
    body: bytes


class _SentCopies(SentRecords, eq=False):
    """Copies, and the number of the control frame that is logged with them, if there is one."""

    records: Rows | Block
    ts: int
    op: int | None
    uncount: Callable[[], None]
    settled: Callable[[Submission | None, DriftQError | None], None]
    counted: bool = True

    def show(self) -> None:
        """Add the copies to the topic. They are in flight no longer: what their caps evict may be copied, too."""
        self.counted = False
        self.uncount()
        apply_append(self.topic, self.records, self.ts)
        if self.op is not None:
            self.topic.op = self.op

    def done(self, submission: Submission | None, error: DriftQError | None) -> None:
        """Pass the result on to the caller."""
        if self.counted:
            self.uncount()
        self.settled(submission, error)


def fitting(topic: Topic, sizes: Sequence[int], quota: int | None) -> int:
    """Return how many of these records, from the first on, fit into a topic; `quota`: bytes left on the server."""
    config = topic.config
    count, payload = len(sizes), quota
    if config.discard is Discard.REJECT:
        if config.cap_records:
            count = min(count, config.cap_records - topic.count - topic.in_flight.records)
        if config.cap_bytes:
            left = config.cap_bytes - topic.payload - topic.in_flight.payload
            payload = left if payload is None else min(payload, left)
    if payload is not None:
        count = min(count, bisect_right(list(accumulate(sizes)), payload))
    return max(count, 0)


class Copier:
    """Adds copied records to topics."""

    def __init__(
        self,
        change_log: ChangeLog,
        commit_point: CommitPoint,
        appender: Appender,
        quota: Quota,
        published: Callable[[Topic], None],
    ) -> None:
        self._change_log = change_log
        self._commit_point = commit_point
        self._appender = appender
        self._quota = quota
        self._published = published

    def room(self, topic: Topic, sizes: Sequence[int]) -> int:
        """Return how many of these records, given by their bytes, fit into the topic and the quota."""
        return fitting(topic, sizes, self._quota.left(sum(sizes)))

    def place(self, topic: Topic, rows: Rows, done: Done, *, note: CopyNote | None, lasting: bool) -> None:
        """Copy records for which there is room. `lasting`: the source records are on stable storage."""
        flight = topic.in_flight
        first, count, payload = flight.next_seq, rows.count, rows.payload_bytes
        last = first + count - 1
        ts = max(self._change_log.time.stamp(), topic.last_ts)
        # Before the frames get their number: a reservation logs a frame of its own, which comes before them in the log.
        if note is not None:
            sync = self._commit_point.must_sync(topic, first, last, self._change_log.between_shards)
        else:  # nothing is logged that a sync could cover, but a sync covers the frame of a reservation
            sync = topic.durability is Durability.DISK and self._commit_point.reservations.must_wait(topic, first, last)
        op = flight.next_op
        records, frames = self._encoded(topic, rows, ts, note)

        def settled(submission: Submission | None, error: DriftQError | None) -> None:
            done(error)
            if error is None:
                if submission is None:
                    flight.acked_since_reserve += count
                self._settled(
                    topic, last, submission.number if submission is not None and frames else None, lasting=lasting
                )

        self._appender.count_in(topic, count, payload)
        # Copies without frames have nothing to wait for: the source records have been passed to the log writer; before
        # that no router could read them.
        uncount = partial(self._appender.count_in, topic, -count, -payload)
        sent = _SentCopies(topic, first, last, records, ts, op if note is not None else None, uncount, settled)
        self._commit_point.send(sent, frames, SYNCED if sync else QUEUED)

    def _encoded(self, topic: Topic, rows: Rows, ts: int, note: CopyNote | None) -> tuple[Rows | Block, list[bytes]]:
        """Return the records in the form that is added to the topic, and the frames to log."""
        if note is None and rows.count < OWN_BLOCK_RECORDS:
            return rows, []
        synced_to = self._change_log.shard_of(topic).synced_to
        frame = encode_block(rows, topic_id=topic.id, first_seq=topic.in_flight.next_seq, ts=ts, synced_to=synced_to)
        records: Rows | Block = Block.of(frame) if rows.count >= OWN_BLOCK_RECORDS else rows
        if note is None:
            return records, []
        control = encode_control(
            note.kind, note.body, topic_id=topic.id, op=topic.in_flight.next_op, ts=ts, synced_to=synced_to
        )
        topic.in_flight.next_op += 1
        return records, [frame, control]

    def _settled(self, topic: Topic, last: int, number: int | None, *, lasting: bool) -> None:
        """Note when the copies, which are visible now, are on stable storage: as soon as their source records are."""
        shard = self._change_log.shard_of(topic)
        if number is None and not lasting:
            number = shard.last_number  # exact if the source has the same shard; else the next write corrects it
        if number is not None:
            topic.in_flight.note_unsynced(shard, number, last)
        elif topic.in_flight.unsynced:
            topic.in_flight.note_unsynced(shard, topic.in_flight.unsynced[-1][0], last)
        else:
            topic.in_flight.synced_seq = last
        self._published(topic)
