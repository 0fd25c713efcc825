"""Applies each frame of the log to the state when the log is read again.

A frame counts once: an Append at or below the head and a control frame at or below the `op` of its topic are skipped,
except for kinds that may be applied after later frames and repeatedly (`_OUT_OF_ORDER`).

An Append whose first seq is not the next one is a jump. It is accepted if the log explains it, by damage before it, by
a reservation, or by a config frame that contains the head; the missing seqs are a hole. Otherwise the frame is skipped:
the rest of a `memory` topic after a loss is not a prefix any more.
A hole is `at_most` if it is not known that its seqs were given out (`engine/recovery/earlier_runs`).

Copies have no frames (`engine/recovery/derived_copies`). If a frame shows that the head was higher than it is now,
copies are made up to that head; a seq without a copy becomes part of a hole. With several shards, a topic's frames may
be read before their source's: those frames wait (`engine/recovery/early_frames`) until every file has been read.
"""

from collections.abc import Iterator

from msgspec import DecodeError

from driftq.engine.engine_time import AHEAD_MS, EngineTime
from driftq.engine.files.segment_files import SegmentFiles
from driftq.engine.read.tag_lookup import TagIndexes
from driftq.engine.recovery.derived_copies import Deriver
from driftq.engine.recovery.earlier_runs import Runs
from driftq.engine.recovery.early_frames import Deferred
from driftq.engine.recovery.recovery_report import ReplayReport
from driftq.engine.recovery.uncommitted_frames import HeldFrame, UncommittedFrames, commit_of
from driftq.engine.state.catalog import Catalog
from driftq.engine.state.control_frames import (
    COMMIT,
    CommitBody,
    DeleteFrame,
    FloorsBody,
    HoleBody,
    TimeSeenBody,
    TopicFrame,
    WatermarkBody,
    decode_body,
    encode_body,
)
from driftq.engine.state.topic import Topic
from driftq.engine.timeline import ClockBody
from driftq.engine.write.state_changes import (
    apply_append,
    apply_delete,
    apply_floors,
    apply_hole,
    apply_one,
    apply_run,
    apply_topic,
)
from driftq.model.limits import BLOCK_BYTES_MAX, BLOCK_RECORDS_MAX, OWN_BLOCK_RECORDS
from driftq.model.tombstone import Reason
from driftq.model.topic_config import Durability
from driftq.storage.blocks.block import Block
from driftq.storage.blocks.frame import FRAME_BYTES_MIN, Frame, Kind, control_body
from driftq.storage.blocks.frame_columns import WRITER, read_one
from driftq.storage.format_version import newer
from driftq.storage.wal.wal_head import FileHead
from driftq.storage.wal.wal_reader import Damage, WalScan

_RECORD_BYTES_MIN = 6
"""A record takes an offset, a flag and one byte of payload in its frame."""
_FILE_HEAD_BYTES_MIN = FRAME_BYTES_MIN + 8
"""Minimum size of the file head, which is not a record: the first frame of a file, whose body is never empty."""
_OWN_KINDS = frozenset(map(int, Kind))
_SAYING_NOTHING = frozenset((Kind.FILE_HEAD, Kind.CHECKPOINT_MARK, Kind.DRAINED, Kind.SPANS))
"""Kinds that change no state when they are replayed."""
_APPEND = int(Kind.APPEND)
_OUT_OF_ORDER = frozenset((Kind.HEAD_WATERMARK, Kind.FLOORS))
"""A checkpoint may contain a later frame but not one of these; applying one again does no harm."""


class Replay:
    """Applies the frames of one start."""

    def __init__(
        self, catalog: Catalog, files: SegmentFiles, indexes: TagIndexes, time: EngineTime, deriver: Deriver | None
    ) -> None:
        self._catalog = catalog
        self._topics = catalog.by_id
        self._files = files
        self._indexes = indexes
        self._time = time
        self._deleted: set[int] = set()
        self.suspects: set[int] = set()
        """Topics that may have lost seqs to damage without a trusted header."""
        self.suspect_records = 0
        self.held = UncommittedFrames()
        self.written_by = ""
        """The version of DriftQ that wrote the file whose frames are read, if the file has it."""
        self._features = {kind: feature for feature in catalog.features for kind in feature.kinds}
        self._deriver = deriver
        self.deferred = Deferred()
        self._reading_several = False
        """Whether there are files of several shards, and not all of them are read."""
        self.runs = Runs()
        self.report = ReplayReport()

    def begin(self, shards: int) -> None:
        """Prepare for the frames of this many shards."""
        self.deferred.open = self._reading_several = self._deriver is not None and shards > 1

    def apply(self, buffer: bytes, frame: Frame) -> None:
        """Apply a frame that is not an Append. Raises NewerFormatError."""
        try:
            self._apply(buffer, frame)
        except DecodeError as error:
            raise newer(f"a frame of kind {frame.kind} in the WAL ({error})", self.written_by) from error

    def _apply(self, buffer: bytes, frame: Frame) -> None:
        kind = frame.kind
        if kind not in _OWN_KINDS and kind not in self._features:
            raise newer(f"a frame of the unknown kind {kind} in the WAL", self.written_by)
        if kind == Kind.DRAINED:
            self.runs.drained()
        if kind in _SAYING_NOTHING:
            return
        if kind == Kind.TIME_SEEN:
            self._time.found_note(decode_body(TimeSeenBody, control_body(buffer, frame)).moment)
        elif kind == Kind.CLOCK:
            self._time.restore(decode_body(ClockBody, control_body(buffer, frame)))
        else:
            self._control(buffer, frame, control_body(buffer, frame))

    def append(self, buffer: bytes, frame: Frame) -> None:
        """Apply an Append frame that needs no Commit frame."""
        _, _, count, topic_id, first, ts, _, _, _, _ = frame
        topic = self._topics.get(topic_id)
        if topic is None:
            self._catalog.next_id = max(self._catalog.next_id, topic_id + 1)
            return
        if self.deferred.topics and self.deferred.add(buffer, frame):
            return
        if first != topic.head + 1 and not self._jump(topic, buffer, frame):
            return
        self.suspects.discard(topic_id)
        one = read_one(buffer, frame) if count == 1 else None
        if one is not None:
            apply_one(topic, *one, ts)
            self._roll_if_closed(topic)
            return
        block = Block.read(buffer, frame)
        if not isinstance(block, Block):
            self.report.damaged += 1
            topic.skip_to(frame.seq + frame.count - 1, Reason.CORRUPTION)
            return
        rows = block.without_flags() if block.count >= OWN_BLOCK_RECORDS else block.rows()
        apply_append(topic, rows, frame.ts, block.key)
        self._files.roll(topic)

    def append_run(self, scan: WalScan, frame: Frame) -> int:
        """Apply the one-record frames of the same topic that follow a one-record frame. Returns how many there were.

        A run ends with the open block, so that the result is the same as if each frame had come alone.
        """
        topic = self._topics.get(frame.topic_id)
        last, self._last_single = self._last_single, (frame.topic_id, frame.seq)
        if topic is None or topic.head != frame.seq or last != (frame.topic_id, frame.seq - 1):
            # Alternating topics have no runs: only after two frames in a row is it worth a search.
            return 0
        opened, config = topic.open, topic.config
        if opened is None or config.ttl_ms or config.cap_records or config.cap_bytes:
            return 0
        run = scan.singles(
            topic.id,
            topic.head + 1,
            rows_max=min(BLOCK_RECORDS_MAX, self._files.events_max) - opened.count,
            bytes_max=BLOCK_BYTES_MAX - opened.payload_bytes,
        )
        if run is None:
            return 0
        apply_run(topic, run.rows, run.times)
        self._last_single = (topic.id, topic.head)
        self._roll_if_closed(topic)
        return run.rows.count

    _last_single = (0, 0)
    """Topic and seq of the newest one-record frame."""

    def _roll_if_closed(self, topic: Topic) -> None:
        if topic.open is None or topic.open.count >= self._files.events_max:
            self._files.roll(topic)

    def _jump(self, topic: Topic, buffer: bytes, frame: Frame) -> bool:
        """Handle the missing seqs before an Append that is not the next. Returns whether to apply the frame."""
        first = frame.seq
        if first + frame.count <= topic.head + 1 or not self._reach(topic, first - 1, buffer, frame):
            return False
        if first > topic.head and (first == topic.head + 1 or self._explain_jump(topic, first - 1)):
            return True
        self.report.jumps_refused += 1
        return False

    def _explain_jump(self, topic: Topic, head: int) -> bool:
        """Make a hole of the missing seqs up to `head` if the log explains them. Returns False if it does not."""
        at_most = self.runs.may_be_raised(topic)
        if topic.id in self.suspects:
            topic.skip_to(head, Reason.CORRUPTION, at_most=at_most)
        elif self._deriver is not None and self._deriver.derives(topic, head):
            # The seqs had copies. If a start raised the head to its reservation, the log contains that.
            self._skip_copies(topic, head)
        elif topic.durability is Durability.DISK and head <= topic.reserved:
            topic.skip_to(head, Reason.CRASH, at_most=at_most)
        else:
            return False
        return True

    def _skip_copies(self, topic: Topic, head: int) -> None:
        """Make a hole of the copies up to `head` that cannot be made again.

        Only synced records are copied into an `fsync` topic, so its source has lost the records since. For any other
        class the crash caused it: the crash lost records of the source but not a later frame of the topic.
        """
        if topic.durability is Durability.FSYNC:
            topic.skip_to(head, Reason.SOURCE_TRIM)
        else:
            topic.skip_to(head, Reason.CRASH, at_most=True)

    def _reach(self, topic: Topic, head: int, buffer: bytes, frame: Frame) -> bool:
        """Make copies up to the head at which a frame was made. Returns whether the frame may be applied now."""
        deriver = self._deriver
        if deriver is None or head <= topic.head:
            return True
        if deriver.derives(topic):
            deriver.derive(topic, head, frame.ts, reach=self._may_fill)
        if head > topic.head and self.deferred.open and topic.durability is not Durability.EPHEMERAL:
            self.deferred.begin(buffer, frame)
            return False
        return True

    def _may_fill(self, source: Topic) -> bool:
        """Whether copies may be placed in a source for another topic: only if no frame of the source is to come."""
        return not self._reading_several and source.id not in self.deferred.topics

    def _defer_behind(self, held: list[HeldFrame], buffer: bytes, frame: Frame) -> bool:
        """Queue a frame, and the frames that it commits, if earlier ones of its topic wait. Returns whether they do."""
        if frame.topic_id not in self.deferred.topics:
            return False
        for content, append in held:
            if content is not None:
                self.deferred.add(content, append)
        return self.deferred.add(buffer, frame)

    def _head_needed(self, topic: Topic, frame: Frame, body: bytes) -> int:
        """Return the head of a topic at which a control frame was made, if that matters for it; else 0."""
        deriver = self._deriver
        if deriver is None or not (self.deferred.open or deriver.derives(topic)):
            return 0
        if frame.kind == Kind.DELETE:
            return decode_body(DeleteFrame, body).bound - 1
        if frame.kind == Kind.TOPIC:
            return decode_body(TopicFrame, body).head
        if frame.kind == Kind.FLOORS:
            return decode_body(FloorsBody, body).earliest - 1
        return deriver.needs(frame.kind, body)

    def _known(self, frame: Frame, body: bytes) -> bool:
        """Whether every topic or router that the frame refers to exists; if not, the caller defers the frame."""
        deriver = self._deriver
        return deriver is None or not self.deferred.open or deriver.knows(frame.kind, body)

    def _control(self, buffer: bytes, frame: Frame, body: bytes) -> None:
        held = self.held.take(frame.topic_id)
        topic = self._catalog.by_id.get(frame.topic_id)
        if topic is None:
            if frame.kind == Kind.TOPIC and frame.topic_id not in self._deleted:
                created = decode_body(TopicFrame, body)
                topic = self._catalog.adopt(frame.topic_id, created.name, created.config)
            else:
                self._catalog.next_id = max(self._catalog.next_id, frame.topic_id + 1)
                return
        known = frame.seq <= topic.op and frame.kind not in _OUT_OF_ORDER
        if known or self._defer_behind(held, buffer, frame):
            return
        if not self._known(frame, body):
            self.deferred.begin(buffer, frame)
            return
        head = self._head_needed(topic, frame, body)
        if not self._reach(topic, head, buffer, frame):
            return
        if head > topic.head and self._deriver is not None and self._deriver.derives(topic, head):
            self._skip_copies(topic, head)
        if frame.kind == COMMIT and not self._publish(topic, held, decode_body(CommitBody, body).last):
            if not self._defer_behind([], buffer, frame):
                topic.op = frame.seq
            return
        self._time.found_stamp(frame.ts)
        self._apply_control(topic, frame, body)

    def _publish(self, topic: Topic, held: list[HeldFrame], last: int) -> bool:
        """Append what a Commit frame closes. Returns whether all of it is there, or was never to be on disk."""
        for buffer, frame in held:
            if buffer is None:
                topic.skip_to(frame.seq + frame.count - 1, Reason.CORRUPTION)
            else:
                self.append(buffer, frame)
        return topic.head >= last or topic.durability is Durability.EPHEMERAL

    def _apply_control(self, topic: Topic, frame: Frame, body: bytes) -> None:
        op, ts = frame.seq, frame.ts
        match frame.kind:
            case Kind.TOPIC:
                changed = decode_body(TopicFrame, body)
                if self._deriver is not None and topic.durability is Durability.EPHEMERAL:
                    self._deriver.forget_unlogged(topic, changed.head)
                apply_topic(topic, changed, op, ts, at_most=self.runs.may_be_raised(topic))
                self.runs.reserved(topic)
                if topic.config.ttl_ms:
                    self._time.found_note(self._time.timeline.moment(ts) + AHEAD_MS)
            case Kind.TOPIC_DELETE:
                self._deleted.add(topic.id)
                self._catalog.forget(topic)
            case Kind.DELETE:
                apply_delete(topic, self._indexes, decode_body(DeleteFrame, body), op, ts)
            case Kind.HEAD_WATERMARK:
                topic.reserved = decode_body(WatermarkBody, body).reserved
                self.runs.reserved(topic)
                topic.op = max(topic.op, op)
            case Kind.HOLE:
                apply_hole(topic, decode_body(HoleBody, body), op, ts)
            case Kind.FLOORS:
                apply_floors(topic, decode_body(FloorsBody, body), op)
            case kind:
                topic.op = op
                self._features[kind].apply(kind, topic, ts, body)

    def damaged(self, damage: Damage, head: FileHead | None) -> None:
        """Handle a damaged region of a file; `head` shows which shard the file belongs to."""
        self.report.damaged += 1
        header = damage.header
        if header is None:
            size = damage.end - damage.start - (0 if damage.start else _FILE_HEAD_BYTES_MIN)
            self.suspect_records += max(0, size) // _RECORD_BYTES_MIN
            for suspect in self._topics_of(head):
                self.suspects.add(suspect.id)
                self.runs.reserve_most(suspect)
            return
        self._catalog.next_id = max(self._catalog.next_id, header.topic_id + 1)
        topic = self._catalog.by_id.get(header.topic_id)
        if header.kind != Kind.APPEND:
            self.report.control_lost += 1
            self._rescue(topic, header)
            if topic is not None:
                self.runs.reserve_most(topic)
        elif header.bits & WRITER:
            self.held.add(None, header)
        elif topic is not None:
            if self._deriver is not None and self._deriver.derives(topic):
                self._deriver.derive(topic, header.seq - 1, header.ts, reach=self._may_fill)
            topic.skip_to(header.seq + header.count - 1, Reason.CORRUPTION)

    def _rescue(self, topic: Topic | None, header: Frame) -> None:
        """Apply the publication of a damaged Commit frame: its Append frames have the same content."""
        held = self.held.take(header.topic_id)
        body = commit_of(held)
        if header.kind == COMMIT and topic is not None and body is not None and header.seq > topic.op:
            topic.op = header.seq
            if self._publish(topic, held, body.last):
                self._features[COMMIT].apply(COMMIT, topic, header.ts, encode_body(body))

    def _topics_of(self, head: FileHead | None) -> Iterator[Topic]:
        """Yield the topics whose frames a file may contain."""
        for topic in self._catalog.by_id.values():
            if head is None or topic.id % head.shards == head.shard:
                yield topic

    # The end

    def apply_deferred(self) -> None:
        """Apply the frames that waited for others, now that every file has been read."""
        self._reading_several = False
        self.runs.all_read = True
        deriver = self._deriver
        if deriver is not None and self.deferred.topics:
            # A router whose own frame waits counts too: the frames of its dest may wait for its source.
            feeds = [
                (frame.topic_id, dest_id)
                for frame, body in self.deferred.controls()
                if (dest_id := deriver.feeds(frame.kind, body)) is not None
            ]
            self.deferred.apply(lambda: [topic.id for topic in deriver.order(feeds)], self._apply_late)
        self.deferred.open = False

    def _apply_late(self, buffer: bytes, frame: Frame, force: bool) -> bool:
        """Apply a frame that waited. Returns whether it does not have to wait any more."""
        self.deferred.open = not force
        if frame.kind == _APPEND:
            self.append(buffer, frame)
        else:
            self.apply(buffer, frame)
        return self.deferred.topics.pop(frame.topic_id, None) is None

    def derive_rest(self) -> None:
        """Make the copies that no frame required."""
        if self._deriver is None:
            return
        ts = self._time.stamp()
        for topic in self._deriver.order():
            self._deriver.finish(topic, ts, self.runs.settle)
