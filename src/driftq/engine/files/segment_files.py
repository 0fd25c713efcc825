"""Keeps the files behind the memory: writes closed blocks, seals, flips flags, drops.

Two threads. One writes closed blocks and never waits for the device, so that they may leave memory. The other does what
takes long: syncs, tag indexes, flags, removals, checkpoints. What it removes it removes behind every write under way.
Where there is a process for it (`storage/segments/segment_process`), that writes blocks and seals, and the threads do
the rest.

Nothing here decides what a topic shows; a failure leaves payloads in memory and serving, and the WAL as the truth,
and is tried again by the next `tick`. Jobs run in the order they were given, so a flag is flipped after its block is
written and a file is removed after everything that was to be done to it.

Invariant: a file that the newest durable checkpoint names, or the one being written, is removed only after a later
checkpoint that no longer names it (`trash`); everything else is in the WAL and may go at once.

Invariant: a delete flag in a file that a checkpoint names is set only when the newest durable checkpoint shows the
delete. Otherwise replay over that checkpoint would find the record gone before its time, and caps and TTL would take
others.

While somebody has pinned the files, to copy them, none is removed, none moves, and no flag in one is set; it is all
done when the last pin is gone.
"""

from array import array
from collections.abc import Callable

from msgspec import Struct

from driftq.engine.files.sealer import Sealing
from driftq.engine.load.disk_space import DiskSpace
from driftq.engine.read.tag_lookup import TagIndexes
from driftq.engine.state.block_cache import Blocks
from driftq.engine.state.segment import Segment
from driftq.engine.state.topic import Topic
from driftq.storage.layout import Layout
from driftq.storage.segments.hot_store import BlockDamagedError, SegmentStore
from driftq.storage.segments.lost_files import LostFiles
from driftq.storage.segments.segment_process import SegmentScribe
from driftq.storage.segments.tag_index import TagIndex
from driftq.system.clock import Clock
from driftq.system.file_thread import FileThread, Work

# long: every step in the life of a file, because their order is the point

_WRITE_BYTES = 8 << 20
"""So much is written at a time, for it may have to be sent to another process."""


class SegmentPolicy(Struct, frozen=True):
    """When a segment is sealed; 0 turns a rule off."""

    events_max: int = 10_000
    bytes_max: int = 64 << 20
    age_max_ms: int = 3_600_000


class Filing:
    """What happens to blocks and segments behind the scenes."""

    def __init__(
        self,
        layout: Layout,
        writes: FileThread,
        thread: FileThread,
        scribe: SegmentScribe | None,
        clock: Clock,
        blocks: Blocks,
        indexes: TagIndexes,
        policy: SegmentPolicy,
    ) -> None:
        self._layout = layout
        self._writes = writes
        self._thread = thread
        self._scribe = scribe
        self._blocks = blocks
        self._store: SegmentStore = blocks.store
        self._indexes = indexes
        self._sealing = Sealing(thread, scribe, clock, blocks, self._sealed)
        self._policy = policy
        self.events_max = policy.events_max
        """How many records a segment holds at most, about."""
        self._flipping: set[Topic] = set()
        self._unsettled: set[Topic] = set()
        self.trash: list[tuple[Topic, Segment]] = []
        self.lost = LostFiles(layout)
        self.captures = 1
        """The number of the newest capture; that of the checkpoint this run began with is 1."""
        self.durable_capture = 1
        self.failures = 0
        self.space = DiskSpace()
        """Told what has no room, and what frees some."""
        self._pins = 0
        self._put_off: list[Callable[[], None]] = []

    @property
    def pinned(self) -> bool:
        """Do the files have to stay as they are?"""
        return self._pins > 0

    def pin(self) -> None:
        """Leave every file that is there as it is; what is appended to one comes behind its end."""
        self._pins += 1

    def unpin(self) -> None:
        """Do what was put off."""
        self._pins -= 1
        if not self._pins:
            put_off, self._put_off = self._put_off, []
            for act in put_off:
                act()
            self.flip()

    def unpinned(self, act: Callable[[], None]) -> None:
        """Do something that takes a file away, as soon as that may be."""
        if self._pins:
            self._put_off.append(act)
        else:
            act()

    @property
    def busy(self) -> bool:
        """Has the thread anything left to do?"""
        at_scribe = 0 if self._scribe is None else self._scribe.jobs
        return self._thread.jobs + self._writes.jobs + at_scribe > 0

    @property
    def waiting(self) -> bool:
        """Are there flags to flip, or files to remove, that need a checkpoint first?"""
        return not self._pins and bool(self.trash or self._flipping)

    def changed(self, topic: Topic) -> None:
        """A topic's log has changed: roll, write, and let go of what is no more."""
        self.roll(topic)
        if topic.segments and (topic.segments[-1].pending or topic.segments[-1].sealing):
            self.settle(topic)
        if topic.dropped:
            self.drop(topic)

    def deleted_rows(self, topic: Topic) -> None:
        """Some flags may have to be flipped."""
        self._flipping.add(topic)
        self.changed(topic)

    def roll(self, topic: Topic) -> None:
        """Seal the active segment when it is large enough."""
        if not topic.segments:
            return
        active = topic.segments[-1]
        if active.sealing:
            return
        policy = self._policy
        opened = topic.open
        size = active.data_bytes + (opened.payload_bytes if opened is not None else 0)
        if topic.head + 1 - active.first_seq >= policy.events_max or 0 < policy.bytes_max <= size:
            topic.seal_active()

    def roll_by_age(self, topic: Topic, now: int) -> None:
        """Seal the active segment when it is old enough."""
        age = self._policy.age_max_ms
        if age and topic.segments and not topic.segments[-1].sealing:
            active = topic.segments[-1]
            if (topic.open is not None or len(active.index)) and now - topic.timeline.moment(active.begun_ms) >= age:
                topic.seal_active()
                self.changed(topic)

    def settle(self, topic: Topic) -> None:
        """Write what is closed and not written, then seal what is complete."""
        for segment in topic.segments:
            if segment.resident or segment.sealed or segment.writing:
                continue
            if segment.written_blocks < len(segment.index):
                self._write(topic, segment)
            elif segment.sealing and len(segment.index):
                self._seal(topic, segment)

    def write_now(self, topic: Topic) -> None:
        """Write closed blocks on the calling thread: for recovery, before anybody is served. Raises OSError."""
        for segment in topic.segments:
            if not segment.resident and segment.written_blocks < len(segment.index):
                frames = self._unwritten(segment)
                self._store.write(topic.id, segment.first_seq, frames)
                self._wrote(segment, len(segment.index))

    def _unwritten(self, segment: Segment, bytes_max: int | None = None) -> list[tuple[int, bytes]]:
        """Its next blocks with their places: all of them, or about so many bytes."""
        frames: list[tuple[int, bytes]] = []
        size = 0
        for number in range(segment.written_blocks, len(segment.index)):
            frames.append((segment.index.place(number)[0], segment.pending[number].frame))
            size += len(frames[-1][1])
            if bytes_max is not None and size >= bytes_max:
                break
        return frames

    def _write(self, topic: Topic, segment: Segment) -> None:
        segment.writing = True
        frames = self._unwritten(segment, _WRITE_BYTES)
        blocks = segment.written_blocks + len(frames)

        def done(_: None, error: Exception | None) -> None:
            segment.writing = False
            if error is None:
                self._wrote(segment, blocks)
                self.space.note(topic, None)
                self.settle(topic)
            else:
                self._failed(topic, error)

        if self._scribe is not None and not self._scribe.gone:
            self._scribe.write(topic.id, segment.first_seq, frames, done)
        else:
            self._writes.submit(lambda: self._store.write(topic.id, segment.first_seq, frames), done)

    def _wrote(self, segment: Segment, blocks: int) -> None:
        for number in range(segment.written_blocks, blocks):
            self._blocks.written(segment, number)
        segment.written_blocks = blocks

    def _seal(self, topic: Topic, segment: Segment) -> None:
        segment.writing = True
        self._sealing.add(topic, segment)

    def _sealed(self, topic: Topic, segment: Segment, tags: TagIndex | None, error: Exception | None) -> None:
        segment.writing = False
        if tags is None or error is not None:
            if isinstance(error, BlockDamagedError):
                topic.look_through(segment)
            self._failed(topic, error)
            return
        self.space.note(topic, None)
        segment.sealed = True
        segment.sealed_behind = self.captures
        segment.durable_blocks = len(segment.index)
        topic.changed = True
        self._indexes.keep(segment, tags)
        if topic.dropped:
            self.drop(topic)

    def undurable(self, topic: Topic) -> int:
        """Bytes of a topic's closed blocks that no sync has covered: what a checkpoint taken now would copy."""
        return sum(
            segment.data_bytes - _end_of(segment, segment.durable_blocks)
            for segment in topic.segments
            if not segment.resident and not segment.sealed
        )

    def sync_active(self, topic: Topic) -> None:
        """Make the written blocks of segments that are not sealed durable, for a checkpoint to name them."""
        behind = [
            (segment, segment.written_blocks)
            for segment in topic.segments
            if not (segment.resident or segment.sealed or segment.away)
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
        """Flip the flags of deletes that the newest checkpoint shows, where their block is in a file."""
        if self._pins:
            return
        for topic in list(self._flipping):
            segments = [segment for segment in topic.segments if segment.flips] if topic.visible else []
            if not segments:
                self._flipping.discard(topic)
            for segment in segments:
                if segment.flippable and not (segment.moving or segment.flipping or segment.away):
                    self._flip(topic, segment)

    def may_move(self, segment: Segment) -> bool:
        """May its hot copy go? Not while a checkpoint names a part of it, for that part is found nowhere else then."""
        return not segment.named or segment.sealed_behind < self.durable_capture

    def checkpointed(self, capture: int) -> None:
        """The checkpoint of a capture is durable: the flags of the deletes it shows may be set."""
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
        segment.flipping = True
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
            segment.flipping = False
            if error is not None:
                self._failed(topic)
                return
            segment.flips = array("Q", [seq for seq in segment.flips if seq not in taken])
            segment.noted -= len(taken)
            segment.flippable -= len(taken)
            topic.changed = True

        self._thread.submit(work, done)

    def drop(self, topic: Topic) -> None:
        """Let go of segments nothing of which is left."""
        dropped, topic.dropped = topic.dropped, []
        for segment in dropped:
            segment.dropped = True
            segment.given_up = topic.is_damaged(segment.first_seq, segment.end_seq)
            self._blocks.forget(topic.id, segment)
            self._indexes.forget(segment)
            if segment.named:
                self.trash.append((topic, segment))
                self.space.can_be_freed()
            elif segment.written_blocks or segment.writing:
                self.remove(topic, segment)

    def in_background(self, work: Callable[[], object], then: Callable[[], None] = lambda: None) -> None:
        """Do something that has time, on the thread; `then` is called on the loop, whatever came of it."""
        self._thread.submit(work, lambda _, __: then())

    def remove(self, topic: Topic, segment: Segment) -> None:
        """Remove a segment's files, wherever they are."""
        self._behind_writes(lambda: self.remove_files([(topic, segment)]))

    def remove_files(self, segments: list[tuple[Topic, Segment]]) -> None:
        """On the thread: the files of segments that are no more. Those of one that was given up are kept."""
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
        """Remove something when every write that is under way now has been done."""

        self.unpinned(lambda: self.after_writes(lambda: self._thread.submit(work, self._removed)))

    def after_writes(self, act: Callable[[], None]) -> None:
        """Call back when every write of blocks that is under way has been answered."""
        self._behind_scribe(lambda: self._writes.submit(lambda: None, lambda _, __: act()))

    def after_syncs(self, done: Callable[[None, Exception | None], None]) -> None:
        """Call back when every sync and seal that is under way has been answered."""
        # Jobs of the file thread answer in order.
        self._behind_scribe(lambda: self._thread.submit(lambda: None, done))

    def _behind_scribe(self, act: Callable[[], None]) -> None:
        if self._scribe is not None and not self._scribe.gone:
            self._scribe.after(act)
        else:
            act()

    def _removed(self, _: None, error: Exception | None) -> None:
        # What could not be removed is an orphan, and the next start removes it.
        self.failures += error is not None
        self.space.look_for_room()

    def retry(self) -> None:
        """Try again what failed."""
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
    """Where the first blocks of a segment end in its file."""
    return sum(segment.index.place(blocks - 1)) if blocks else 0
