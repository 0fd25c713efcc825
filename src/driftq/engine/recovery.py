"""From a data directory to the state it promises (http-v0 §19.7).

    newest valid checkpoint → named segments and their flags → orphans away → every WAL file past its checkpoint, by
    number → holes for what is missing → `disk` heads raised to their reservation → what was replayed made durable

Idempotent and restartable: nothing it writes is needed by its next run, and a run that is cut short anywhere is
followed by one that finds the same. A frame counts once: an Append at or below the head and a control frame at or
below the `op` of its topic are skipped.

An Append whose first seq is not the next one is a jump. It is believed where the log explains it, by damage before it,
by a reservation, or by a config frame that says where the head was; the missing seqs are a hole. Otherwise the frame is
passed over: the tail of a `memory` topic behind a loss is no prefix any more.

Copies have no frames (`engine.upstream`). Where a frame says that the head was further than it is, copies are made
until it is there; what no copy can be made for is a hole. With the frames of several shards a topic's may come before
those that its copies are made from: then they wait (`engine.deferred`) until every file has been read.
"""

from collections.abc import Iterator

from msgspec import DecodeError, Struct, msgpack

from driftq.engine.apply import apply_append, apply_delete, apply_hole, apply_one, apply_run, apply_topic
from driftq.engine.capture import Restorer, decode_topic
from driftq.engine.catalog import Catalog
from driftq.engine.checkpoint import ENGINE_SECTION, EngineState
from driftq.engine.deferred import Deferred
from driftq.engine.filing import Filing
from driftq.engine.frames import (
    COMMIT,
    CommitBody,
    DeleteBody,
    HoleBody,
    TimeSeenBody,
    TopicBody,
    WatermarkBody,
    decode_body,
    encode_body,
)
from driftq.engine.held import Held, HeldFrame, commit_of
from driftq.engine.tags import TagIndexes
from driftq.engine.time import AHEAD_MS, EngineTime
from driftq.engine.topic import Topic
from driftq.engine.upstream import Deriver
from driftq.errors import NewerFormatError, UnrecoverableError
from driftq.model.limits import BLOCK_BYTES_MAX, BLOCK_RECORDS_MAX, OWN_BLOCK_RECORDS, RESERVE_MAX
from driftq.model.tombstone import Reason
from driftq.model.topic import Durability
from driftq.seam.disk import Site, write_fully
from driftq.storage.block import Block
from driftq.storage.bodies import FileHead, decode_file_head
from driftq.storage.cold_store import ColdStore
from driftq.storage.columns import WRITER, read_one
from driftq.storage.frame import Frame, Kind, control_body, read_frame
from driftq.storage.layout import Layout
from driftq.storage.segment_store import SegmentStore
from driftq.storage.snapshot import Snapshot, newest_snapshot
from driftq.storage.wal_reader import Damage, WalScan

# long: the order of a start is one story, and its steps are told in that order

_RECORD_BYTES_MIN = 6
"""A record takes an offset, a flag and one byte of payload in its frame."""
_STEP_FRAMES = 1024
"""A step is so many frames, some milliseconds of work."""
_OWN_KINDS = frozenset(map(int, Kind))
_APPEND = int(Kind.APPEND)


class Report(Struct):
    """What a start found."""

    snapshot: int = 0
    refused_snapshots: list[str] = []
    files: int = 0
    frames: int = 0
    torn: int = 0
    damaged: int = 0
    control_lost: int = 0
    """Damaged control frames: counted and said, never guessed."""
    jumps_refused: int = 0


class Recovery:
    """One start."""

    def __init__(
        self,
        layout: Layout,
        catalog: Catalog,
        store: SegmentStore,
        cold: ColdStore | None,
        filing: Filing,
        indexes: TagIndexes,
        time: EngineTime,
        deriver: Deriver | None = None,
    ) -> None:
        self._layout = layout
        self._disk = layout.disk
        self._catalog = catalog
        self._topics = catalog.by_id
        self._filing = filing
        self._indexes = indexes
        self._time = time
        self._restorer = Restorer(store, cold)
        self._deleted: set[int] = set()
        self._suspects: set[int] = set()
        """Topics that damage without a believable header may have cost seqs."""
        self._suspect_records = 0
        self._held = Held()
        self._features = {kind: feature for feature in catalog.features for kind in feature.kinds}
        self._deriver = deriver
        self._deferred = Deferred()
        self._reading_several = False
        """Are there files of several shards, and not all of them read?"""
        self.report = Report()

    def steps(self) -> Iterator[float]:
        """All of it, in order, a little at a time: after every step, how much of it is done, from 0 to 1."""
        self._make_entries_durable()
        number, snapshot, refused = newest_snapshot(self._layout)
        self.report.snapshot, self.report.refused_snapshots = number, refused
        if snapshot is None:
            self._check_from_the_start(refused)
        else:
            self._check_positions(snapshot, refused)
            yield from self._restore(snapshot)
        self._remove_orphans()
        yield from self._replay(snapshot.positions if snapshot is not None else {})
        self._finish()
        yield 1.0

    def _make_entries_durable(self) -> None:
        """The process before may have died between a rename, or a new WAL file, and the sync of its directory.

        A checkpoint that could still vanish must not be built on, for what it no longer names is removed; a WAL file
        that could still vanish would leave a gap in the numbers.
        """
        self._disk.sync_dir(self._layout.meta_dir, Site.SNAPSHOT_DIR)
        for name in self._layout.wal_dirs():
            self._disk.sync_dir(self._layout.wal_dir(name), Site.WAL_DIR)

    # The checkpoint

    def _check_from_the_start(self, refused: list[str]) -> None:
        """Without a checkpoint the WAL must begin at its first file and have no gap."""
        numbers = {number for number, _ in self._layout.wal_files()}
        complete = numbers == set(range(1, len(numbers) + 1))
        if not complete or (not numbers and (refused or self._has_segments())):
            named = f"checkpoint {refused[0]} cannot be read" if refused else "there is no checkpoint"
            raise UnrecoverableError(
                f"{named}, and the WAL below {self._layout.wal_dir('')} does not begin at its first file;"
                " restore the checkpoint or the WAL from a backup"
            )

    def _check_positions(self, snapshot: Snapshot, refused: list[str]) -> None:
        """The WAL files a checkpoint ends in stay until a newer one is durable: without them that one is needed."""
        for name, (number, offset) in snapshot.positions.items():
            path = self._layout.wal_path(name, number)
            if offset and not self._disk.exists(path):
                newer = f"checkpoint {refused[0]} cannot be read, and of the one before it" if refused else "of the WAL"
                raise UnrecoverableError(f"{newer} {path} is missing; restore it from a backup")

    def _has_segments(self) -> bool:
        return any(self._layout.segment_files(topic_id, cold=False) for topic_id in self._layout.topic_ids(cold=False))

    def _restore(self, snapshot: Snapshot) -> Iterator[float]:
        sections = dict(snapshot.sections)
        state = msgpack.decode(sections.pop(ENGINE_SECTION), type=EngineState)
        self._time_seen = state.time_seen
        for content in snapshot.topics:
            topic_state = decode_topic(content)
            topic = self._catalog.adopt(topic_state.topic_id, topic_state.name, topic_state.config)
            self._restorer.restore(topic_state, topic)
            yield 0.0
        self._catalog.next_id = max(self._catalog.next_id, state.next_topic_id)
        for feature in self._catalog.features:
            section = sections.pop(feature.name, None)
            if section is not None:
                feature.restore(section)
        if sections:
            raise NewerFormatError(
                f"the checkpoint has sections this version does not know: {', '.join(sorted(sections))};"
                " start the version that wrote it"
            )

    _time_seen = 0

    def _remove_orphans(self) -> None:
        """Files that no checkpoint names: the WAL has their records, and replay writes them anew."""
        for cold in (False, True):
            for topic_id in self._layout.topic_ids(cold=cold):
                topic = self._catalog.by_id.get(topic_id)
                named = {} if topic is None else {segment.first_seq: segment for segment in topic.segments}
                for first_seq, suffixes in self._layout.segment_files(topic_id, cold=cold).items():
                    if (topic_id, first_seq) in self._restorer.unreadable:
                        continue
                    segment = named.get(first_seq)
                    if segment is None or segment.cold != cold:
                        for suffix in sorted(suffixes):
                            self._disk.unlink(self._layout.segment_path(topic_id, first_seq, suffix))

    # The WAL

    def _replay(self, positions: dict[str, tuple[int, int]]) -> Iterator[float]:
        files = [
            (number, name) for number, name in self._layout.wal_files() if number >= positions.get(name, (0, 0))[0]
        ]
        heads = {key: self._head_of(*key) for key in files}
        self._deferred.open = self._reading_several = self._deriver is not None and len({name for _, name in files}) > 1
        followed_to = {
            (head.previous, name): head.previous_end for (_, name), head in heads.items() if head is not None
        }
        for done, (number, name) in enumerate(files):
            at, offset = positions.get(name, (0, 0))
            start = offset if number == at else 0
            self._check_previous(heads, number, name, at)
            steps = self._replay_file(number, name, start, heads[number, name], followed_to.get((number, name), 0))
            for share in steps:
                yield (done + share) / len(files)

    def _check_previous(self, heads: dict[tuple[int, str], FileHead | None], number: int, name: str, at: int) -> None:
        """A file that is missing before this one is damage, as many bytes as it had."""
        head = heads[number, name]
        if head is not None and at <= head.previous and head.previous and (head.previous, name) not in heads:
            self._damaged(Damage(0, head.previous_end, None), head)

    def _head_of(self, number: int, name: str) -> FileHead | None:
        file = self._disk.open(self._layout.wal_path(name, number))
        try:
            content = file.pread(256, 0)
        finally:
            file.close()
        header = read_frame(content, 0, len(content))
        if not isinstance(header, Frame) or header.kind != Kind.FILE_HEAD:
            return None
        return decode_file_head(control_body(content, header))

    def _replay_file(
        self, number: int, name: str, start: int, head: FileHead | None, synced_end: int
    ) -> Iterator[float]:
        path = self._layout.wal_path(name, number)
        buffer = self._read(path, synced_end)
        scan = WalScan(buffer, number, start, synced_end=synced_end)
        self.report.files += 1
        frames, step = 0, _STEP_FRAMES
        for found in scan:
            if isinstance(found, Damage):
                self._damaged(found, head)
                continue
            frames += 1
            if found.kind == _APPEND:
                if found.bits & WRITER:
                    self._held.add(buffer, found)
                else:
                    self._append(buffer, found)
                    if found.count == 1:
                        frames += self._append_run(scan, found)
            else:
                self._apply(buffer, found)
            if frames >= step:
                step = frames + _STEP_FRAMES
                yield found.end / len(buffer)
        self._held.drop()
        self.report.frames += frames
        for topic in self._catalog.by_id.values():
            if topic.segments and topic.segments[-1].pending:
                self._filing.write_now(topic)
        proven = max(scan.proven, synced_end)
        if scan.torn or scan.end > proven:
            self._make_durable(path, scan, buffer[max(proven, start) : scan.end])

    def _read(self, path: str, synced_end: int) -> bytes:
        """The frames of a file: all of it, or up to the end that a later file of the same run knows of."""
        file = self._disk.open(path)
        try:
            return file.pread(synced_end or file.size(), 0)
        finally:
            file.close()

    def _make_durable(self, path: str, scan: WalScan, unproven: bytes) -> None:
        """What was replayed is shown from now on, so it must not get lost; what was torn off must not come back.

        Its end is written again. If a sync of it failed in the process before, these pages count as clean, and another
        sync would leave them where they are, in memory.
        """
        file = self._disk.open(path)
        try:
            if scan.torn:
                self.report.torn += 1
                file.truncate(scan.end)
            write_fully(file, [unproven], scan.end - len(unproven))
            file.sync(Site.WAL_REPLAYED)
        finally:
            file.close()

    def _apply(self, buffer: bytes, frame: Frame) -> None:
        kind = frame.kind
        if kind not in _OWN_KINDS and kind not in self._features:
            raise NewerFormatError(
                f"the WAL holds a frame of kind {kind}, which this version does not know;"
                " start the version that wrote it"
            )
        if kind in (Kind.FILE_HEAD, Kind.CHECKPOINT_MARK):
            return
        if kind == Kind.TIME_SEEN:
            self._time_seen = max(self._time_seen, decode_body(TimeSeenBody, control_body(buffer, frame)).moment)
        else:
            self._control(buffer, frame, control_body(buffer, frame))

    def _append(self, buffer: bytes, frame: Frame) -> None:
        _, _, count, topic_id, first, ts, _, _, _ = frame
        topic = self._topics.get(topic_id)
        if topic is None:
            self._catalog.next_id = max(self._catalog.next_id, topic_id + 1)
            return
        if self._deferred.topics and self._deferred.add(buffer, frame):
            return
        if first != topic.head + 1 and not self._jump(topic, buffer, frame):
            return
        if self._suspects:
            self._suspects.discard(topic_id)
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
        self._filing.roll(topic)

    def _append_run(self, scan: WalScan, frame: Frame) -> int:
        """What follows a one-record frame, if it is more of the same. Returns how many frames that was.

        A run ends where the open block does, so that all is as if each frame had come alone.
        """
        topic = self._topics.get(frame.topic_id)
        last, self._last_single = self._last_single, (frame.topic_id, frame.seq)
        if topic is None or topic.head != frame.seq or last != (frame.topic_id, frame.seq - 1):
            # Topics that take turns have no runs: two frames in a row make it worth a look.
            return 0
        opened, config = topic.open, topic.config
        if opened is None or config.ttl_ms or config.cap_records or config.cap_bytes:
            return 0
        run = scan.singles(
            topic.id,
            topic.head + 1,
            rows_max=min(BLOCK_RECORDS_MAX, self._filing.events_max) - opened.count,
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
        if topic.open is None or topic.open.count >= self._filing.events_max:
            self._filing.roll(topic)

    def _jump(self, topic: Topic, buffer: bytes, frame: Frame) -> bool:
        """An Append that is not the next: is it to be applied, after what was done about what is missing before it?"""
        first = frame.seq
        if first + frame.count <= topic.head + 1 or not self._reach(topic, first - 1, buffer, frame):
            return False
        if first > topic.head and (first == topic.head + 1 or self._explain_jump(topic, first - 1)):
            return True
        self.report.jumps_refused += 1
        return False

    def _explain_jump(self, topic: Topic, head: int) -> bool:
        """Seqs up to `head` are missing: make a hole of them where the log says why, or refuse."""
        if topic.id in self._suspects:
            topic.skip_to(head, Reason.CORRUPTION)
        elif self._deriver is not None and self._deriver.derives(topic, head):
            # Copies were there. Where a start raised the head to its reservation, the log has said so.
            topic.skip_to(head, Reason.SOURCE_TRIM)
        elif topic.durability is Durability.DISK and head <= topic.reserved:
            topic.skip_to(head, Reason.CRASH)
        else:
            return False
        return True

    def _reach(self, topic: Topic, head: int, buffer: bytes, frame: Frame) -> bool:
        """A frame was made at this head: bring the topic there with copies. Returns whether it may be applied now."""
        deriver = self._deriver
        if deriver is None or head <= topic.head:
            return True
        if deriver.derives(topic):
            deriver.derive(topic, head, frame.ts, reach=self._may_fill)
        if head > topic.head and self._deferred.open and topic.durability is not Durability.EPHEMERAL:
            self._deferred.begin(buffer, frame)
            return False
        return True

    def _may_fill(self, source: Topic) -> bool:
        """May copies be placed in a source because another topic needs them? Not before frames that are to come."""
        return not self._reading_several and source.id not in self._deferred.topics

    def _defer_behind(self, held: list[HeldFrame], buffer: bytes, frame: Frame) -> bool:
        """Where frames of its topic wait already, this one waits behind them, and so does what it closes."""
        if frame.topic_id not in self._deferred.topics:
            return False
        for content, append in held:
            if content is not None:
                self._deferred.add(content, append)
        return self._deferred.add(buffer, frame)

    def _head_needed(self, topic: Topic, frame: Frame, body: bytes) -> int:
        """Where the head of a topic was when a control frame was made, if that matters for it."""
        deriver = self._deriver
        if deriver is None or not (self._deferred.open or deriver.derives(topic)):
            return 0
        if frame.kind == Kind.DELETE:
            return decode_body(DeleteBody, body).bound - 1
        if frame.kind == Kind.TOPIC:
            return decode_body(TopicBody, body).head
        return deriver.needs(frame.kind, body)

    def _known(self, frame: Frame, body: bytes) -> bool:
        """Is what a frame names there? Else it waits, if there is anything to wait for."""
        deriver = self._deriver
        return deriver is None or not self._deferred.open or deriver.knows(frame.kind, body)

    def _control(self, buffer: bytes, frame: Frame, body: bytes) -> None:
        held = self._held.take(frame.topic_id)
        topic = self._catalog.by_id.get(frame.topic_id)
        if topic is None:
            if frame.kind == Kind.TOPIC and frame.topic_id not in self._deleted:
                created = decode_body(TopicBody, body)
                topic = self._catalog.adopt(frame.topic_id, created.name, created.config)
            else:
                self._catalog.next_id = max(self._catalog.next_id, frame.topic_id + 1)
                return
        if frame.seq <= topic.op or self._defer_behind(held, buffer, frame):
            return
        try:
            if not self._known(frame, body):
                self._deferred.begin(buffer, frame)
                return
            head = self._head_needed(topic, frame, body)
            if not self._reach(topic, head, buffer, frame):
                return
            if head > topic.head and self._deriver is not None and self._deriver.derives(topic, head):
                topic.skip_to(head, Reason.SOURCE_TRIM)
            if frame.kind == COMMIT and not self._publish(topic, held, decode_body(CommitBody, body).last):
                if not self._defer_behind([], buffer, frame):
                    topic.op = frame.seq
                return
            self._time_seen = max(self._time_seen, frame.ts if topic.config.ttl_ms else 0)
            self._apply_control(topic, frame, body)
        except DecodeError as error:
            raise NewerFormatError(
                f"a frame of kind {frame.kind} cannot be read by this version: {error}; start the version that wrote it"
            ) from error

    def _publish(self, topic: Topic, held: list[HeldFrame], last: int) -> bool:
        """Append what a Commit frame closes. Returns whether all of it is there, or was never to be on disk."""
        for buffer, frame in held:
            if buffer is None:
                topic.skip_to(frame.seq + frame.count - 1, Reason.CORRUPTION)
            else:
                self._append(buffer, frame)
        return topic.head >= last or topic.durability is Durability.EPHEMERAL

    def _apply_control(self, topic: Topic, frame: Frame, body: bytes) -> None:
        op, ts = frame.seq, frame.ts
        match frame.kind:
            case Kind.TOPIC:
                apply_topic(topic, decode_body(TopicBody, body), op, ts)
                if topic.config.ttl_ms:
                    self._time_seen = max(self._time_seen, ts + AHEAD_MS)
            case Kind.TOPIC_DELETE:
                self._deleted.add(topic.id)
                self._catalog.forget(topic)
            case Kind.DELETE:
                apply_delete(topic, self._indexes, decode_body(DeleteBody, body), op, ts)
            case Kind.HEAD_WATERMARK:
                topic.reserved = decode_body(WatermarkBody, body).reserved
                topic.op = op
            case Kind.HOLE:
                apply_hole(topic, decode_body(HoleBody, body), op, ts)
            case kind:
                topic.op = op
                self._features[kind].apply(kind, topic, ts, body)

    def _damaged(self, damage: Damage, head: FileHead | None) -> None:
        self.report.damaged += 1
        header = damage.header
        if header is None:
            self._suspect_records += (damage.end - damage.start) // _RECORD_BYTES_MIN
            for suspect in self._topics_of(head):
                self._suspects.add(suspect.id)
                self._reserve_most(suspect)
            return
        self._catalog.next_id = max(self._catalog.next_id, header.topic_id + 1)
        topic = self._catalog.by_id.get(header.topic_id)
        if header.kind != Kind.APPEND:
            self.report.control_lost += 1
            self._rescue(topic, header)
            if topic is not None:
                self._reserve_most(topic)
        elif header.bits & WRITER:
            self._held.add(None, header)
        elif topic is not None:
            if self._deriver is not None and self._deriver.derives(topic):
                self._deriver.derive(topic, header.seq - 1, header.ts, reach=self._may_fill)
            topic.skip_to(header.seq + header.count - 1, Reason.CORRUPTION)

    def _rescue(self, topic: Topic | None, header: Frame) -> None:
        """A damaged Commit frame: it was there, and what it closed says the rest."""
        held = self._held.take(header.topic_id)
        body = commit_of(held)
        if header.kind == COMMIT and topic is not None and body is not None and header.seq > topic.op:
            topic.op = header.seq
            if self._publish(topic, held, body.last):
                self._features[COMMIT].apply(COMMIT, topic, header.ts, encode_body(body))

    def _reserve_most(self, topic: Topic) -> None:
        """What was lost may have been a reservation; the next one that can be read puts this right."""
        if topic.durability is Durability.DISK:
            topic.reserved = topic.head + RESERVE_MAX

    def _topics_of(self, head: FileHead | None) -> Iterator[Topic]:
        """The topics whose frames a file may hold."""
        for topic in self._catalog.by_id.values():
            if head is None or topic.id % head.shards == head.shard:
                yield topic

    # The end

    def _finish(self) -> None:
        self._apply_deferred()
        for topic, first, last in self._restorer.lost:
            topic.holes.add(max(first, topic.evict_floor), last, Reason.CORRUPTION)
        for topic in [topic for topic in self._catalog.by_id.values() if topic.id in self._suspects]:
            if topic.durability in (Durability.DISK, Durability.FSYNC):
                topic.skip_to(topic.head + self._suspect_records, Reason.CORRUPTION)
        self._derive_rest()
        for topic in sorted(self._catalog.by_id.values(), key=lambda topic: topic.id):
            if topic.durability is Durability.DISK:
                topic.skip_to(topic.reserved, Reason.CRASH)
            if topic.config.ttl_ms:
                self._time_seen = max(self._time_seen, topic.last_ts)
            topic.next_seq = topic.head + 1
            topic.next_op = topic.op + 1
            topic.reserve_asked = topic.reserved
            topic.synced_seq = topic.head
            self._claim_name(topic)
        self._time.not_before(self._time_seen if self._any_ttl() else 0)
        now = self._time.now()
        for topic in self._catalog.by_id.values():
            topic.expire(now)
            # The log does it behind every frame. Only rows whose flags could not be believed may be too many.
            topic.evict()

    def _apply_deferred(self) -> None:
        """Every file has been read: what waited for others goes on."""
        self._reading_several = False
        deriver = self._deriver
        if deriver is not None:
            self._deferred.apply(lambda: [topic.id for topic in deriver.order()], self._apply_late)
        self._deferred.open = False

    def _apply_late(self, buffer: bytes, frame: Frame, force: bool) -> bool:
        """A frame that waited; says whether it need wait no more."""
        self._deferred.open = not force
        if frame.kind == _APPEND:
            self._append(buffer, frame)
        else:
            self._apply(buffer, frame)
        waits = frame.topic_id in self._deferred.topics
        if waits:
            del self._deferred.topics[frame.topic_id]
        return not waits

    def _derive_rest(self) -> None:
        """Copies that no frame asked for. Those that readers may have seen come before the reserved seqs."""
        if self._deriver is None:
            return
        now = max(self._time.now(), self._time_seen if self._any_ttl() else 0)
        for topic in self._deriver.order():
            self._deriver.finish(topic, now)
            if topic.durability is Durability.DISK and topic.reserved > topic.head:
                before = topic.head
                topic.skip_to(topic.reserved, Reason.CRASH)
                self._deriver.raised(topic, before)

    def _claim_name(self, topic: Topic) -> None:
        """Topics come by id: a later one of the same name exists only because the earlier was deleted."""
        earlier = self._catalog.by_name.get(topic.name)
        if earlier is not None:
            self._catalog.forget(earlier)
        self._catalog.hold_name(topic)
        topic.visible = True

    def _any_ttl(self) -> bool:
        return any(topic.config.ttl_ms for topic in self._catalog.by_id.values())
