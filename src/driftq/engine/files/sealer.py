"""Seals segments in batches of those that have collected: in the writer process if there is one, else on the file
thread.

A seal makes three syncs, and the first seal of a batch pays for most of the others: they share the file system's
journal. A damaged block fails only the seal of its own segment; an I/O error fails the batch, which is tried again.

On the thread, blocks that are still in memory are indexed from memory: reading one back would take the interpreter lock
three times and stop the loop as often. When seals follow one another closely, loading a faster sort pays off.

Invariant: a seal by the writer process counts only if this process has not seen a failed sync of the same data. After a
failure in the writer process the data is marked doubtful here, so that the thread writes it again before its next sync.
"""

from collections.abc import Callable
from errno import EIO
from functools import partial

from driftq.engine.state.block_cache import Blocks
from driftq.engine.state.segment import DROPPED, SEAL_AWAY, Segment
from driftq.engine.state.topic import Topic
from driftq.storage.blocks.block import Block
from driftq.storage.segments.hot_store import BlockDamagedError
from driftq.storage.segments.seal import UnsealedSegment, seal
from driftq.storage.segments.segment_process import Sealed, SegmentProcess, WriterProcessError
from driftq.storage.segments.tag_index import TagIndex
from driftq.system.clock import Clock
from driftq.system.file_thread import FileThread

Done = Callable[[Topic, Segment, TagIndex | None, Exception | None], None]
"""Called for each segment with its tag index, or with the reason why it is not sealed."""

_BATCH_MAX = 32
"""Limits the time that a checkpoint waits, because its syncs run after the current batch."""
_HELD_BYTES_MAX = 32 << 20
"""A batch keeps at most this many bytes of blocks in memory; the rest is read back."""
_CLOSELY_NS = 300 * 1_000_000
"""A batch that starts within this time of the previous one is one of many: 30 000 records a second, or more."""


class _Job:
    """A segment to be sealed, and the result."""

    __slots__ = ("damage", "held", "numbers", "segment", "tags", "topic")

    damage: BlockDamagedError | OSError | None

    def __init__(self, topic: Topic, segment: Segment) -> None:
        self.topic = topic
        self.segment = segment
        # Blocks without live rows are left out, because they may be unreadable.
        self.numbers = [number for number in range(len(segment.index)) if segment.live_in(number)[0]]
        self.held: dict[int, Block] = {}
        self.tags: TagIndex | None = None
        self.damage = None

    @property
    def dropped(self) -> bool:
        """Whether the segment is dropped or its topic is deleted."""
        return self.segment.state is DROPPED or self.topic.gone

    def note(self, found: Sealed) -> None:
        """Store the result of the seal."""
        if isinstance(found, TagIndex):
            self.tags = found
        else:
            self.damage = found


class Sealing:
    """Runs seals, one batch at a time."""

    def __init__(
        self, thread: FileThread, writer_process: SegmentProcess | None, clock: Clock, blocks: Blocks, done: Done
    ) -> None:
        self._thread = thread
        self._writer_process = writer_process
        self._clock = clock
        self._begun_ns = clock.monotonic_ns() - _CLOSELY_NS
        self._memory = blocks
        self._store = blocks.store
        self._done = done
        self._waiting: list[_Job] = []
        self._busy = False

    def add(self, topic: Topic, segment: Segment) -> None:
        """Queue a segment whose blocks are all written."""
        self._waiting.append(_Job(topic, segment))
        self._begin()

    def _begin(self) -> None:
        if self._busy or not self._waiting:
            return
        waiting = [job for job in self._waiting if not job.dropped]  # do not seal a file that is being removed
        batch, self._waiting = waiting[:_BATCH_MAX], waiting[_BATCH_MAX:]
        if not batch:
            return
        self._busy = True
        now_ns = self._clock.monotonic_ns()
        hurry = len(batch) > 1 or now_ns - self._begun_ns < _CLOSELY_NS
        self._begun_ns = now_ns
        doubtful = any(self._store.is_doubtful(job.topic.id, job.segment.first_seq) for job in batch)
        if self._writer_process is not None and not self._writer_process.gone and not doubtful:
            self._send(self._writer_process, batch, hurry=hurry)
            return
        self._hold(batch)
        self._thread.submit(lambda: self._work(batch, hurry=hurry), lambda _, error: self._end(batch, error))

    def _end(self, batch: list[_Job], error: Exception | None) -> None:
        self._busy = False
        for job in batch:
            self._done(job.topic, job.segment, job.tags, error or job.damage)
        self._begin()

    def _send(self, writer_process: SegmentProcess, batch: list[_Job], *, hurry: bool) -> None:
        def done(found: list[Sealed], error: WriterProcessError | None) -> None:
            for place, job in enumerate(batch):
                job.segment.end(SEAL_AWAY)
                if error is not None and place in error.doubtful and not job.dropped:
                    self._store.doubt(job.topic.id, job.segment.first_seq)
            for job, sealed in zip(batch, found, strict=error is None):
                if self._store.may_be_doubtful(job.topic.id, job.segment.first_seq):
                    job.damage = OSError(EIO, "a sync of this segment failed meanwhile")
                else:
                    job.note(sealed)
            self._end(batch, error)

        for job in batch:
            job.segment.begin(SEAL_AWAY)
        segments = [(job.topic.id, job.segment.first_seq, job.segment.index, job.numbers) for job in batch]
        writer_process.seal(segments, done, hurry=hurry)

    def _hold(self, batch: list[_Job]) -> None:
        held = 0
        for job in batch:
            for number in job.numbers:
                block = self._memory.in_memory(job.segment, number)
                if block is None or held > _HELD_BYTES_MAX:
                    break
                job.held[number] = block
                held += len(block.frame)

    def _work(self, batch: list[_Job], *, hurry: bool) -> None:
        """Build tag indexes and make all pairs durable, on the thread."""
        segments = [
            UnsealedSegment(job.topic.id, job.segment.first_seq, job.segment.index, partial(self._blocks, job))
            for job in batch
        ]
        for job, sealed in zip(batch, seal(self._store, segments, hurry=hurry), strict=True):
            job.note(sealed)

    def _blocks(self, job: _Job) -> list[Block]:
        topic_id, segment = job.topic.id, job.segment
        held, job.held = {} if self._store.is_doubtful(topic_id, segment.first_seq) else job.held, {}
        return [
            held.get(number) or self._store.read_block(topic_id, segment.first_seq, segment.index, number)
            for number in job.numbers
        ]
