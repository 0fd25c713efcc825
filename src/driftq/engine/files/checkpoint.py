"""The checkpoint: capture the whole state in one loop turn, install it, remove the WAL before it (http-v0 §19.5).

    sync active segments, mark every shard → capture → install → remove older snapshots, WAL files, dropped segments

Exactness. Frames before a mark are applied when the mark has settled. Frames after it may be applied too, and are
replayed over the capture: an Append at or below the captured head and a control frame at or below the captured `op` are
skipped, so each frame counts once. A step that fails ends the checkpoint, and the previous one stays valid; a block
that must be copied and cannot be read is such a failure.

Invariant: no state is captured while a shard is stopped, because memory may lack changes that the log has. Topics that
are late (`engine/recovery/deferred_load`) are loaded first.

On a full disk a mark for which there is no space is left out: only its position in the log matters
(`storage/wal/wal_writer`). A snapshot for which there is no space is written over the reserve file
(`storage/space_reserve`).
"""

from collections.abc import Callable
from functools import partial

from msgspec import Struct, msgpack

from driftq.engine.engine_time import EngineTime
from driftq.engine.files.checkpoint_health import CheckpointRecord
from driftq.engine.files.segment_files import SegmentFiles
from driftq.engine.files.topic_checkpoint import capture_topic
from driftq.engine.load.disk_space import DiskSpace
from driftq.engine.state.block_cache import Blocks
from driftq.engine.state.catalog import Catalog
from driftq.engine.state.segment import Segment
from driftq.engine.state.topic import Topic
from driftq.engine.timeline import ClockBody
from driftq.engine.write.lost_writes import Losses
from driftq.errors import DriftQError
from driftq.model.limits import MIB
from driftq.storage.blocks.frame import Kind, encode_control
from driftq.storage.layout import Layout
from driftq.storage.no_space import is_no_space
from driftq.storage.snapshot_file import (
    Snapshot,
    install_snapshot,
    overwrite_snapshot,
    remove_older,
    snapshot_parts,
    unfinished_path,
)
from driftq.storage.space_reserve import SpaceReserve
from driftq.storage.wal.group_commit import Shard, Submission
from driftq.storage.wal.shards import Shards
from driftq.system.file_thread import FileThread
from driftq.system.runtime import Pending

ENGINE_SECTION = "engine"
_ROUNDS_MAX = 4
_COPIED_BYTES = 4 << 20
"""How many bytes may be copied into a checkpoint without another round of syncs."""
_KEPT_BYTES_MAX = MIB
_STOPPED = "the log is stopped"
_ROW_BYTES = 40
"""About how many bytes a record of an open block adds to a snapshot, besides its payload."""
_COPIES = 3
"""How many copies of a capture memory holds at most: itself, the body of the file, and the encoder's spare space."""


class EngineState(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """State of the engine that belongs to no topic."""

    next_topic_id: int
    time_seen: int
    """Expiry is decided up to this moment of engine time, and after a restart not for an earlier one."""
    clock: ClockBody | None = None


class Checkpointer:
    """Takes checkpoints, one at a time."""

    def __init__(
        self,
        layout: Layout,
        shards: Shards,
        catalog: Catalog,
        segment_files: SegmentFiles,
        thread: FileThread,
        blocks: Blocks,
        time: EngineTime,
        losses: Losses,
        space: DiskSpace,
        space_reserve: SpaceReserve,
        last_number: int,
        record: CheckpointRecord,
    ) -> None:
        self._layout = layout
        self._shards = shards
        self._catalog = catalog
        self._segment_files = segment_files
        self._thread = thread
        self._blocks = blocks
        self._time = time
        self._losses = losses
        self._space = space
        self._space_reserve = space_reserve
        self._number = last_number
        self.record = record
        self._captured: dict[Topic, bytes] = {}
        self._running: Pending[bool] | None = None
        self._size = 0
        self._copied = 0
        """What `_bytes_in_memory` was at the last capture."""
        self._payload = 0
        """Live payload bytes of the server at the last capture."""
        self.bytes_written = 0
        """Size of the last snapshot in bytes."""
        self.lacked = 0
        """Size in bytes of the last snapshot if the disk had no space for it; else 0."""
        self.wal_bytes_before = 0
        """Bytes that the shards had written when the last checkpoint began."""

    @property
    def wal_bytes(self) -> int:
        """Return the WAL bytes written since the last checkpoint."""
        return self._shards.bytes_written - self.wal_bytes_before

    @property
    def needed(self) -> int:
        """Return about how many bytes the next snapshot has: the state, and the records that are in memory only."""
        return max(self.bytes_written, self.bytes_written - self._copied + self._bytes_in_memory())

    def _bytes_in_memory(self) -> int:
        size = min(self._blocks.unwritten_bytes, _COPIED_BYTES)  # more is written to segments before the capture
        for topic in self._catalog.visible():
            opened = topic.open
            if opened is not None and not topic.is_resident():
                gone = 0 if topic.open_dead is None else topic.open_dead.payload
                size += opened.payload_bytes - gone + _ROW_BYTES * opened.count
        return size

    def has_room(self) -> bool:
        """Whether there may be space now for the snapshot that lacked it: some was freed, or it would be smaller."""
        free = self._layout.disk.free_bytes(self._layout.meta_dir)
        return free + self._space_reserve.size >= self.lacked or self._blocks.usage.payload < self._payload

    def run(self, *, clean: bool = False) -> Pending[bool]:
        """Take a checkpoint; the result is whether it was installed.

        A running one is shared, except with `clean`, which starts another one after it.
        """
        if self._running is not None:
            return self._clean_behind(self._running) if clean else self._running
        answer = self._running = Pending()
        self.record.begin()

        def begin(error: BaseException | None) -> None:
            if error is not None or self._any_stopped():
                self._fail(answer, _STOPPED if error is None else str(error))
            else:
                self._begin(answer, clean=clean)

        self._catalog.when_loaded(begin)
        return answer

    def capture(self) -> Snapshot:
        """Return the whole state in this turn for use outside a checkpoint (a backup); its log ends here. Raises
        OSError.

        Must not be called during a checkpoint: both would change the number of deletes that are noted as captured.
        """
        assert self._running is None
        topics = list(self._catalog.visible())
        noted = [(segment, segment.noted) for topic in topics for segment in topic.segments]
        try:
            return Snapshot(
                {}, self._capture_sections(clean=True), [capture_topic(topic, clean=True) for topic in topics]
            )
        finally:
            for segment, before in noted:
                segment.noted = before

    def _begin(self, answer: Pending[bool], *, clean: bool) -> None:
        """Sync files and mark every shard; when all of them have finished, install."""
        wal_bytes = self.wal_bytes_before + self.wal_bytes
        self._segment_files.flip()
        waiting = [len(self._shards.all) + 1]

        def arrived(error: Exception | None) -> None:
            waiting[0] -= 1
            if answer.settled:
                return
            if error is not None or self._any_stopped():
                self._fail(answer, _STOPPED if error is None else str(error))
            elif waiting[0] == 0:
                self._install(answer, marks, wal_bytes, clean=clean)

        def marked(_: Submission, error: DriftQError | None) -> None:
            arrived(error)

        marks = [
            Submission(
                [self._mark(shard)],
                sync=True,
                done=marked,
                uses_reserve=True,
                is_mark=True,
                in_place=self.lacked > 0,
            )
            for shard in self._shards.all
        ]
        wal_bytes += sum(mark.size for mark in marks)  # otherwise an idle server never becomes quiet
        for shard, mark in zip(self._shards.all, marks, strict=True):
            shard.submit(mark)
            shard.flush()
        self._sync_files(arrived, _ROUNDS_MAX, clean=clean)

    def _sync_files(
        self, arrived: Callable[[Exception | None], None], rounds: int, before: int | None = None, *, clean: bool
    ) -> None:
        """Write closed blocks and make them durable, in rounds, until few bytes are left to be copied.

        New blocks are closed meanwhile. So at most `rounds` rounds may make less than 4 MiB durable, compared with
        `before`, the bytes that the previous round left. A graceful stop (`clean`) has already waited for writes by
        threads, and copies the blocks that they have not written.
        """
        for topic in self._catalog.visible():
            if topic.changed:
                self._segment_files.settle(topic)
                self._segment_files.sync_active(topic)

        def synced(_: None, error: Exception | None) -> None:
            left = sum(self._segment_files.undurable(topic) for topic in self._catalog.visible() if topic.changed)
            used = 0 if before is not None and left + _COPIED_BYTES <= before else 1
            if error is None and rounds > used and left > _COPIED_BYTES:
                self._sync_files(arrived, rounds - used, left, clean=clean)
            else:
                arrived(error)

        if clean:
            self._segment_files.after_syncs(synced)
        else:
            self._segment_files.after_writes(lambda: self._segment_files.after_syncs(synced))

    def _any_stopped(self) -> bool:
        return any(shard.stopped is not None for shard in self._shards.all)

    def _clean_behind(self, running: Pending[bool]) -> Pending[bool]:
        """Take another checkpoint after the running one, which may have begun before the last writes."""
        answer: Pending[bool] = Pending()
        running.then(lambda _: self.run(clean=True).then(lambda done: answer.resolve(done.result())))
        return answer

    def _mark(self, shard: Shard) -> bytes:
        ts = self._time.stamp()
        return encode_control(Kind.CHECKPOINT_MARK, b"", topic_id=0, op=0, ts=ts, synced_to=shard.synced_to)

    def _install(self, answer: Pending[bool], marks: list[Submission], wal_bytes: int, *, clean: bool) -> None:
        """Capture the state in this turn, after all syncs and marks, and write it on the thread."""
        self._segment_files.captures = capture = self._segment_files.captures + 1
        try:
            snapshot = Snapshot(
                self._positions(marks), self._capture_sections(clean=clean), self._capture_topics(clean=clean)
            )
        except OSError as error:
            self._segment_files.failures += 1
            self._fail(answer, str(error))
            return
        trash: list[tuple[Topic, Segment]] = []
        if not self._segment_files.pinned:
            trash, self._segment_files.trash = self._segment_files.trash, []
        self._payload = self._blocks.usage.payload
        copied = self._bytes_in_memory()
        number = self._number + 1
        covered = self._losses.captured()
        lent = _COPIES * sum(map(len, snapshot.topics))
        self._blocks.lend(lent)

        def done(size: int | None, error: Exception | None) -> None:
            self._blocks.lend(-lent)
            if size is None or error is not None:
                self._segment_files.trash += trash
                if error is not None:
                    self.lacked = self._size if is_no_space(error) else 0
                    self._space.note(self, error)
                self._fail(answer, str(error))
                return
            self.lacked = 0
            self._space.note(self, None)
            self._number = number
            self.bytes_written, self._copied = size, min(size, copied)
            self.wal_bytes_before = wal_bytes
            self._segment_files.checkpointed(capture)
            self._losses.covered(covered)
            self.record.installed(size)
            self._end(answer, installed=True)

        self._thread.submit(partial(self._write, number, snapshot, trash), done)

    def _positions(self, marks: list[Submission]) -> dict[str, tuple[int, int]]:
        """Return where replay begins in every shard directory: after the marks, and after all files of earlier runs."""
        run = min(mark.end for mark in marks) >> 32
        positions = dict.fromkeys(self._layout.wal_dirs(), (run, 0))
        for name, mark in zip(self._shards.names, marks, strict=True):
            positions[name] = (mark.end >> 32, mark.end & 0xFFFFFFFF)
        return positions

    def _capture_sections(self, *, clean: bool) -> dict[str, bytes]:
        # The moments in the WAL were logged in advance too. After a graceful stop no reader can see more records
        # expire.
        seen = self._time.now() if clean else self._time.ahead()
        engine = EngineState(self._catalog.next_id, seen, self._time.state())
        sections = {feature.name: feature.capture() for feature in self._catalog.features}
        sections[ENGINE_SECTION] = msgpack.encode(engine)
        return sections

    def _capture_topics(self, *, clean: bool) -> list[bytes]:
        """Return every topic; those without a change since the last capture as they were captured then.

        A large capture is full of records that no segment had yet. It is not kept, because the next one will be small.
        """
        topics = self._catalog.visible()
        for topic in topics:
            topic.expire(self._time.now())
            if topic not in self._captured or topic.changed or clean:
                # Store it at once: if a later topic cannot be read, this one will not count as changed any more.
                self._captured[topic] = capture_topic(topic, clean=clean)
                topic.changed = False
        captured = {topic: self._captured[topic] for topic in topics}
        self._captured = {topic: content for topic, content in captured.items() if len(content) <= _KEPT_BYTES_MAX}
        return list(captured.values())

    def _write(self, number: int, snapshot: Snapshot, trash: list[tuple[Topic, Segment]]) -> int:
        """Install the snapshot and remove the files that it replaces, on the thread."""
        parts = snapshot_parts(snapshot)
        snapshot.topics.clear()  # they are in the parts now, and may be large
        self._size = sum(map(len, parts))
        try:
            install_snapshot(self._layout, number, *parts)
        except OSError as error:
            if not is_no_space(error) or not self._overwrite_reserve(number, parts):
                raise
        try:
            remove_older(self._layout, number)
            for file, name in self._layout.wal_files():
                if file < snapshot.positions.get(name, (0, 0))[0]:
                    self._layout.disk.unlink(self._layout.wal_path(name, file))
            self._segment_files.remove_files(trash)
            self._space_reserve.keep(2 * self._size)  # before logs and segments use the space that is free now
        except OSError:
            # The snapshot is installed. Files that could not be removed are ignored by a start and removed by the next
            # checkpoint.
            self._segment_files.failures += 1
        return self._size

    def _overwrite_reserve(self, number: int, parts: tuple[bytes, bytes]) -> bool:
        """Install the snapshot in place of the reserve file. Returns whether there was one. Raises OSError.

        A file system that copies on write needs space for that too: then the reserve file is removed first.
        """
        path = unfinished_path(self._layout, number)
        size = self._space_reserve.size
        if not self._space_reserve.lend(path, self._layout.meta_dir):
            return False
        try:
            overwrite_snapshot(self._layout, number, *parts)
        except OSError as error:
            self._space_reserve.take_back(path, self._layout.meta_dir)
            if not is_no_space(error) or self._size > size or not self._space_reserve.release():
                raise
            install_snapshot(self._layout, number, *parts)
        return True

    def _fail(self, answer: Pending[bool], why: str) -> None:
        if not answer.settled:
            self.record.failed(why)
        self._end(answer, installed=False)

    def _end(self, answer: Pending[bool], *, installed: bool) -> None:
        self._running = None
        if not answer.settled:
            answer.resolve(installed)
