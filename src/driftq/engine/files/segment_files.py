"""Keeps the segment files up to date with memory: writes closed blocks, seals, sets delete flags, removes files.

There are two threads. One writes closed blocks and never waits for the device, so that blocks can leave memory. The
other does slow work: syncs, tag indexes, flags, removals, checkpoints. It removes a file only after every write in
flight. If there is a writer process for segments (`storage/segments/segment_process`), that process writes blocks and
seals, and the threads do the rest.

Nothing here decides what a topic shows. After a failure the payloads stay in memory and are served from there, the WAL
still has them, and the next `tick` tries again. Jobs run in the order in which they were submitted, so a flag is set
after its block is written, and a file is removed after all other work on it.

Invariant: a file that the newest durable checkpoint references, or the one being written, is removed only after a later
checkpoint that no longer references it (`trash`); everything else is in the WAL and may be removed at once.

Invariant: a delete flag in a file that a checkpoint references is set only when the newest durable checkpoint contains
the delete. Otherwise replay over that checkpoint would find the record gone too early, and caps and TTL would remove
other records.

While a backup has pinned the files to copy them, no file is removed or moved, and no flag is set; all this is done when
the last pin is released.
"""

from array import array
from collections.abc import Callable

from msgspec import Struct

from driftq.engine.files.sealer import Sealing
from driftq.engine.load.disk_space import DiskSpace
from driftq.engine.read.tag_lookup import TagIndexes
from driftq.engine.state.block_cache import Blocks
from driftq.engine.state.segment import ACTIVE, COLD, FLAG, SEAL, SEAL_AWAY, SEALED, SEALING, WRITE, Segment
from driftq.engine.state.topic import Topic
from driftq.storage.layout import Layout
from driftq.storage.segments.hot_store import BlockDamagedError, SegmentStore
from driftq.storage.segments.lost_files import LostFiles
from driftq.storage.segments.segment_process import SegmentProcess
from driftq.storage.segments.tag_index import TagIndex
from driftq.system.clock import Clock
from driftq.system.file_thread import FileThread, Work

# long: every step in the life of a file, because their order is the point

_WRITE_BYTES = 8 << 20
"""Maximum bytes of one write, because it may have to be sent to another process."""

_MOSTLY = 4
"""While space is short, an active segment is replaced if at most one in this many of its records is live."""
_RENEWED_BYTES = 1 << 20
"""While space is not short, an active segment without live records is kept up to this size."""


class SegmentPolicy(Struct, frozen=True):
    """When a segment is sealed; 0 turns a rule off."""

    events_max: int = 10_000
    bytes_max: int = 64 << 20
    age_max_ms: int = 3_600_000


class SegmentFiles:
    """Schedules all work on segment files, and tracks its results."""

    def __init__(
        self,
        layout: Layout,
        writes: FileThread,
        thread: FileThread,
        writer_process: SegmentProcess | None,
        clock: Clock,
        blocks: Blocks,
        indexes: TagIndexes,
        policy: SegmentPolicy,
    ) -> None:
        self._layout = layout
        self._writes = writes
        self._thread = thread
        self._writer_process = writer_process
        self._blocks = blocks
        self._store: SegmentStore = blocks.store
        self._indexes = indexes
        self._sealing = Sealing(thread, writer_process, clock, blocks, self._sealed)
        self._policy = policy
        self.events_max = policy.events_max
        """Approximate maximum of records in a segment."""
        self._flipping: set[Topic] = set()
        self._unsettled: set[Topic] = set()
        self.trash: list[tuple[Topic, Segment]] = []
        self.lost = LostFiles(layout)
        self.captures = 1
        """The number of the newest capture; the checkpoint that this run began with is number 1."""
        self.durable_capture = 1
        self.failures = 0
        self.space = DiskSpace()
        """Gets the errors of writes that found no space, and requests checkpoints that free some."""
        self._pins = 0
        self._put_off: list[Callable[[], None]] = []

    @property
    def pinned(self) -> bool:
        """Whether files must stay as they are, because they are pinned."""
        return self._pins > 0

    def pin(self) -> None:
        """Leave every existing file as it is; data may still be appended to it."""
        self._pins += 1

    def unpin(self) -> None:
        """Release a pin; after the last one, do the work that was postponed."""
        self._pins -= 1
        if not self._pins:
            put_off, self._put_off = self._put_off, []
            for act in put_off:
                act()
            self.flip()

    def unpinned(self, act: Callable[[], None]) -> None:
        """Run `act`, which removes or changes a file, as soon as no pin forbids it."""
        if self._pins:
            self._put_off.append(act)
        else:
            act()

    @property
    def busy(self) -> bool:
        """Whether the threads or the writer process have work left."""
        at_writer_process = 0 if self._writer_process is None else self._writer_process.jobs
        return self._thread.jobs + self._writes.jobs + at_writer_process > 0

    @property
    def waiting(self) -> bool:
        """Whether flags or removals wait for a checkpoint."""
        return not self._pins and bool(self.trash or self._flipping)

    def changed(self, topic: Topic) -> None:
        """Continue the file work of a topic whose log has changed: seal, write blocks, and remove dropped segments."""
        self.roll(topic)
        if topic.segments and (topic.segments[-1].pending or topic.segments[-1].state is not ACTIVE):
            self.settle(topic)
        if topic.dropped:
            self.drop(topic)

    def deleted_rows(self, topic: Topic) -> None:
        """Remember that delete flags of a topic may have to be set, and continue its file work."""
        self._flipping.add(topic)
        self.renew(topic)
        self.changed(topic)

    def roll(self, topic: Topic) -> None:
        """Close the active segment when it is large enough."""
        if not topic.segments:
            return
        active = topic.segments[-1]
        if active.state is not ACTIVE:
            return
        policy = self._policy
        opened = topic.open
        size = active.data_bytes + (opened.payload_bytes if opened is not None else 0)
        if topic.head + 1 - active.first_seq >= policy.events_max or 0 < policy.bytes_max <= size:
            topic.seal_active()

    def renew(self, topic: Topic) -> None:
        """Drop an active segment whose file has only deleted records, or mostly such while space is short."""
        active = topic.segments[-1] if topic.segments else None
        if active is None or active.state is not ACTIVE or active.resident or not active.data_bytes:
            return
        if self.space.short:
            worth = active.live * _MOSTLY <= active.end_seq - active.first_seq
        else:
            worth = not active.live and active.data_bytes >= _RENEWED_BYTES
        if worth:
            topic.renew_active()
            self.changed(topic)

    def roll_by_age(self, topic: Topic, now: int) -> None:
        """Close the active segment when it is old enough."""
        age = self._policy.age_max_ms
        if age and topic.segments and topic.segments[-1].state is ACTIVE:
            active = topic.segments[-1]
            if (topic.open is not None or len(active.index)) and now - topic.timeline.moment(active.begun_ms) >= age:
                topic.seal_active()
                self.changed(topic)

    def settle(self, topic: Topic) -> None:
        """Write closed blocks that are not written, then seal complete segments."""
        for segment in topic.segments:
            if segment.state is SEALED or segment.state is COLD or segment.resident or segment.writing:
                continue
            if segment.written_blocks < len(segment.index):
                self._write(topic, segment)
            elif segment.state is SEALING and len(segment.index):
                self._seal(topic, segment)

    def write_now(self, topic: Topic) -> None:
        """Write closed blocks on the calling thread; for recovery, before requests are served. Raises OSError."""
        for segment in topic.segments:
            if not segment.resident and segment.written_blocks < len(segment.index):
                frames = self._unwritten(segment)
                self._store.write(topic.id, segment.first_seq, frames)
                self._wrote(segment, len(segment.index))

    def _unwritten(self, segment: Segment, bytes_max: int | None = None) -> list[tuple[int, bytes]]:
        """Return its next unwritten blocks with their offsets: all of them, or about `bytes_max` bytes."""
        frames: list[tuple[int, bytes]] = []
        size = 0
        for number in range(segment.written_blocks, len(segment.index)):
            frames.append((segment.index.place(number)[0], segment.pending[number].frame))
            size += len(frames[-1][1])
            if bytes_max is not None and size >= bytes_max:
                break
        return frames

    def _write(self, topic: Topic, segment: Segment) -> None:
        segment.begin(WRITE)
        frames = self._unwritten(segment, _WRITE_BYTES)
        blocks = segment.written_blocks + len(frames)

        def done(_: None, error: Exception | None) -> None:
            segment.end(WRITE)
            if error is None:
                self._wrote(segment, blocks)
                self.space.note(topic, None)
                self.settle(topic)
            else:
                self._failed(topic, error)

        if self._writer_process is not None and not self._writer_process.gone:
            self._writer_process.write(topic.id, segment.first_seq, frames, done)
        else:
            self._writes.submit(lambda: self._store.write(topic.id, segment.first_seq, frames), done)

    def _wrote(self, segment: Segment, blocks: int) -> None:
        for number in range(segment.written_blocks, blocks):
            self._blocks.written(segment, number)
        segment.written_blocks = blocks

    def _seal(self, topic: Topic, segment: Segment) -> None:
        segment.begin(SEAL)
        self._sealing.add(topic, segment)

    def _sealed(self, topic: Topic, segment: Segment, tags: TagIndex | None, error: Exception | None) -> None:
        segment.end(SEAL)
        if tags is None or error is not None:
            if isinstance(error, BlockDamagedError):
                topic.look_through(segment)
            self._failed(topic, error)
            return
        self.space.note(topic, None)
        if segment.state is SEALING:  # else it was dropped meanwhile
            segment.seal(self.captures)
        topic.changed = True
        self._indexes.keep(segment, tags)
        if topic.dropped:
            self.drop(topic)

    def undurable(self, topic: Topic) -> int:
        """Return the bytes of a topic's closed blocks that no sync has covered; a checkpoint would copy them."""
        return sum(
            segment.data_bytes - _end_of(segment, segment.durable_blocks)
            for segment in topic.segments
            if not segment.resident and not segment.sealed
        )

    def sync_active(self, topic: Topic) -> None:
        """Make the written blocks of unsealed segments durable, so that a checkpoint can reference them."""
        behind = [
            (segment, segment.written_blocks)
            for segment in topic.segments
            if not (segment.resident or segment.sealed or SEAL_AWAY in segment.work)
            and segment.durable_blocks < segment.written_blocks
        ]
        if behind:
            self._sync(topic, behind)

    def _sync(self, topic: Topic, behind: list[tuple[Segment, int]]) -> None:
        def done(_: None, error: Exception | None) -> None:
            if error is not None:
                self._failed(topic)
                return
            for segment, blocks in behind:
                segment.durable_blocks = max(segment.durable_blocks, blocks)
            topic.changed = True

        sizes = [(segment.first_seq, _end_of(segment, blocks)) for segment, blocks in behind]
        self._thread.submit(lambda: self._store.sync_data(topic.id, sizes), done)

    def flip(self) -> None:
        """Set the flags on disk of deletes that the newest checkpoint contains, if their block is in a file."""
        if self._pins:
            return
        for topic in list(self._flipping):
            segments = [segment for segment in topic.segments if segment.flips] if topic.visible else []
            if not segments:
                self._flipping.discard(topic)
            for segment in segments:
                if segment.flippable and segment.may_begin(FLAG):
                    self._flip(topic, segment)

    def may_move(self, segment: Segment) -> bool:
        """Whether its hot copy may be removed: not while a checkpoint references a part of it."""
        return not segment.named or segment.sealed_behind < self.durable_capture

    def checkpointed(self, capture: int) -> None:
        """Allow setting the flags of deletes that this capture contains, because its checkpoint is durable."""
        self.durable_capture = capture
        for topic in self._flipping:
            for segment in topic.segments:
                segment.flippable = segment.noted
        self.flip()

    def _flip(self, topic: Topic, segment: Segment) -> None:
        written = segment.index.end_seq(segment.written_blocks - 1) if segment.written_blocks else 0
        taken = {seq for seq in segment.flips[: segment.flippable] if seq < written}
        if not taken:
            return
        segment.begin(FLAG)
        found = [segment.find(seq) for seq in sorted(taken)]
        if segment.cold:
            cold = self._blocks.cold
            assert cold is not None
            places = [segment.row_number(number, row) for number, row in found]

            def work() -> None:
                cold.flip(topic.id, segment.first_seq, places)
        else:
            places = [segment.flag_place(number, row) for number, row in found]

            def work() -> None:
                self._store.flip(topic.id, segment.first_seq, places)

        def done(_: None, error: Exception | None) -> None:
            segment.end(FLAG)
            if error is not None:
                self._failed(topic)
                return
            segment.flips = array("Q", [seq for seq in segment.flips if seq not in taken])
            segment.noted -= len(taken)
            segment.flippable -= len(taken)
            topic.changed = True

        self._thread.submit(work, done)

    def drop(self, topic: Topic) -> None:
        """Release segments without live records, and remove their files as soon as allowed."""
        dropped, topic.dropped = topic.dropped, []
        for segment in dropped:
            segment.drop(given_up=topic.is_damaged(segment.first_seq, segment.end_seq))
            self._blocks.forget(topic.id, segment)
            self._indexes.forget(segment)
            if segment.named:
                self.trash.append((topic, segment))
                self.space.can_be_freed()
            elif segment.written_blocks or segment.writing:
                self.remove(topic, segment)

    def in_background(self, work: Callable[[], object], then: Callable[[], None] = lambda: None) -> None:
        """Run low-priority work on the file thread and discard its result; then call `then` on the loop."""
        self._thread.submit(work, lambda _, __: then())

    def remove(self, topic: Topic, segment: Segment) -> None:
        """Remove a segment's files from both tiers."""
        self._behind_writes(lambda: self.remove_files([(topic, segment)]))

    def remove_files(self, segments: list[tuple[Topic, Segment]]) -> None:
        """Remove the files of dropped segments, on the thread. Those of given-up segments are kept in `lost/`."""
        for topic, segment in segments:
            if segment.given_up:
                self.lost.keep(topic.id, segment.first_seq)
            self._store.drop(topic.id, segment.first_seq)
            if self._blocks.cold is not None:
                self._blocks.cold.drop(topic.id, segment.first_seq)

    def remove_topic(self, topic: Topic) -> None:
        """Remove everything below a deleted topic's directories."""

        def work() -> None:
            for cold in (False, True):
                if not cold or self._layout.cold is not None:
                    self._layout.disk.remove_tree(self._layout.topic_dir(topic.id, cold=cold))
            self.lost.drop_topic(topic.id)

        self._behind_writes(work)

    def _behind_writes(self, work: Work) -> None:
        """Run `work`, which removes files, when every write in flight now is finished."""

        self.unpinned(lambda: self.after_writes(lambda: self._thread.submit(work, self._removed)))

    def after_writes(self, act: Callable[[], None]) -> None:
        """Call back when every write of blocks in flight is answered."""
        self._behind_writer_process(lambda: self._writes.submit(lambda: None, lambda _, __: act()))

    def after_syncs(self, done: Callable[[None, Exception | None], None]) -> None:
        """Call back when every sync and seal in flight is answered."""
        # Jobs of the file thread are answered in order.
        self._behind_writer_process(lambda: self._thread.submit(lambda: None, done))

    def _behind_writer_process(self, act: Callable[[], None]) -> None:
        if self._writer_process is not None and not self._writer_process.gone:
            self._writer_process.after(act)
        else:
            act()

    def _removed(self, _: None, error: Exception | None) -> None:
        # A file that could not be removed is an orphan, and the next start removes it.
        self.failures += error is not None
        self.space.look_for_room()

    def retry(self) -> None:
        """Try again what failed: writes and seals of topics."""
        topics, self._unsettled = self._unsettled, set()
        for topic in topics:
            if topic.visible:
                self.settle(topic)
            if not topic.visible or not any(segment.writing for segment in topic.segments):
                self.space.note(topic, None)

    def _failed(self, topic: Topic, error: Exception | None = None) -> None:
        self.failures += 1
        self._unsettled.add(topic)
        if error is not None:
            self.space.note(topic, error)


def _end_of(segment: Segment, blocks: int) -> int:
    """Return the end offset of the first `blocks` blocks in the segment's file."""
    return sum(segment.index.place(blocks - 1)) if blocks else 0
