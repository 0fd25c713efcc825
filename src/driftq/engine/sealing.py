"""Seals segments on the file thread, as many at a time as have piled up while it was busy.

A seal is three syncs, and the first of a batch pays for most of the others: they share the file system's journal. A
damaged block fails the seal of its own segment only; an I/O error fails the batch, which is tried again.
"""

from collections.abc import Callable

from driftq.engine.filing_thread import FileThread
from driftq.engine.segment import Segment
from driftq.engine.topic import Topic
from driftq.storage.block import Block
from driftq.storage.segment_store import BlockDamagedError, Seal, SegmentStore
from driftq.storage.tag_index import TagIndex
from driftq.storage.tag_sort import index_blocks

Done = Callable[[Topic, Segment, TagIndex | None, Exception | None], None]
"""Hears of each segment: its tag index, or why it is not sealed."""


class _Job:
    """A segment to be sealed, and what came of it."""

    __slots__ = ("damage", "numbers", "segment", "tags", "topic")

    def __init__(self, topic: Topic, segment: Segment) -> None:
        self.topic = topic
        self.segment = segment
        # A block nothing of which is left may be one that cannot be read.
        self.numbers = [number for number in range(len(segment.index)) if segment.live_in(number)[0]]
        self.tags: TagIndex | None = None
        self.damage: BlockDamagedError | None = None


class Sealing:
    """One batch at a time."""

    def __init__(self, thread: FileThread, store: SegmentStore, done: Done) -> None:
        self._thread = thread
        self._store = store
        self._done = done
        self._waiting: list[_Job] = []
        self._busy = False

    def add(self, topic: Topic, segment: Segment) -> None:
        """A segment whose blocks are all written."""
        self._waiting.append(_Job(topic, segment))
        self._begin()

    def _begin(self) -> None:
        if self._busy or not self._waiting:
            return
        batch, self._waiting = self._waiting, []
        self._busy = True

        def done(_: None, error: Exception | None) -> None:
            self._busy = False
            for job in batch:
                self._done(job.topic, job.segment, job.tags, error or job.damage)
            self._begin()

        self._thread.submit(lambda: self._work(batch), done)

    def _work(self, batch: list[_Job]) -> None:
        """On the thread: tag indexes, then all durable pairs."""
        for job in batch:
            try:
                job.tags = index_blocks(self._blocks(job), job.segment.first_seq)
            except BlockDamagedError as damage:
                job.damage = damage
        self._store.seal(
            [
                Seal(job.topic.id, job.segment.first_seq, job.segment.index, job.tags.encode())
                for job in batch
                if job.tags is not None
            ]
        )

    def _blocks(self, job: _Job) -> list[Block]:
        topic_id, segment = job.topic.id, job.segment
        return [self._store.read_block(topic_id, segment.first_seq, segment.index, number) for number in job.numbers]
