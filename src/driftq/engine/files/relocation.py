"""Moves sealed segments above the hot limit to the cold tier, on the file thread, while reads and deletes continue.

    hot → copied (a durable cold pair, with the flags of the hot one) → switched → hot copy removed

While a segment is moving, none of its flags is set on disk: deletes are logged and marked in memory as usual. Deletes
whose flag is not on disk yet (`flips`) belong to the cold copy afterwards, whose flags are set later. A crash at any
point leaves a good copy, and the hot one counts.

A segment that the newest checkpoint references by its blocks waits until another checkpoint references it as sealed,
and requests that checkpoint: otherwise, on a server without writes, it would wait forever.
"""

from array import array
from itertools import accumulate

from driftq.config import Settings
from driftq.engine.files.segment_files import SegmentFiles
from driftq.engine.state.block_cache import Blocks
from driftq.engine.state.catalog import Catalog
from driftq.engine.state.segment import MOVE, SEALED, Dead, Segment
from driftq.engine.state.topic import Topic
from driftq.storage.blocks.delete_flags import DELETED
from driftq.storage.segments.block_index import BlockIndex
from driftq.system.file_thread import FileThread


class _Copy:
    """The result of the thread: the cold index, and running payload totals of all rows."""

    __slots__ = ("index", "weights")

    def __init__(self, index: BlockIndex, weights: "array[int]") -> None:
        self.index = index
        self.weights = weights


class Relocation:
    """Moves segments from the hot to the cold tier."""

    def __init__(
        self, settings: Settings, thread: FileThread, blocks: Blocks, catalog: Catalog, segment_files: SegmentFiles
    ) -> None:
        self._retain_segments = settings.hot_retain_segments
        self._retain_bytes = settings.hot_retain_bytes
        self._thread = thread
        self._blocks = blocks
        self._catalog = catalog
        self._segment_files = segment_files
        self.moved = 0
        self.failures = 0
        self.waiting = False
        """Whether the last run found a segment that needs a checkpoint first."""

    def run(self) -> None:
        """Begin to move the segments above the limit."""
        self.waiting = False
        if self._segment_files.pinned:
            return
        for topic in self._catalog.visible():
            if topic.late:
                continue
            for segment in self._beyond(topic):
                if self._segment_files.may_move(segment):
                    self._copy(topic, segment)
                else:
                    self.waiting = True

    def _beyond(self, topic: Topic) -> list[Segment]:
        """Return the hot sealed segments above the limits, oldest first."""
        hot = [segment for segment in topic.segments if segment.state is SEALED]
        kept = min(self._retain_segments, len(hot))
        if self._retain_bytes:
            sizes = list(accumulate(segment.data_bytes for segment in reversed(hot)))
            kept = min(kept, sum(1 for size in sizes if size <= self._retain_bytes))
        return [segment for segment in hot[: len(hot) - kept] if MOVE not in segment.work]

    def _copy(self, topic: Topic, segment: Segment) -> None:
        segment.begin(MOVE)

        def done(copy: _Copy | None, error: Exception | None) -> None:
            segment.end(MOVE)
            if copy is None or error is not None:
                # A segment with a damaged block stays where it is; after other errors the next run tries again.
                self.failures += 1
            elif segment in topic.segments:
                self._switch(topic, segment, copy)

        self._thread.submit(lambda: self._write(topic, segment), done)

    def _write(self, topic: Topic, segment: Segment) -> _Copy:
        """Write the durable cold copy, on the thread."""
        cold, store = self._blocks.cold, self._blocks.store
        assert cold is not None
        numbers = range(len(segment.index))
        blocks = [store.read_block(topic.id, segment.first_seq, segment.index, number) for number in numbers]
        weights = array("q", (0,))
        for block in blocks:
            base = weights[-1]
            weights.extend([base + weight for weight in block.weights(0, block.count)[1:]])
        flags = b"".join([block.flags for block in blocks])
        return _Copy(cold.write(topic.id, segment.first_seq, blocks, flags), weights)

    def _switch(self, topic: Topic, segment: Segment, copy: _Copy) -> None:
        """Make the cold copy the segment: the same rows in other blocks."""
        flags = bytearray()
        for number in range(len(segment.index)):
            dead = segment.dead.get(number)
            flags += dead.flags if dead is not None else bytes(segment.index.count(number))
        self._blocks.forget(topic.id, segment)
        segment.move(copy.index)
        starts = list(accumulate((copy.index.count(number) for number in range(len(copy.index))), initial=0))
        segment.dead = {}
        for number in range(len(copy.index)):
            start = starts[number]
            part = flags[start : starts[number + 1]]
            if DELETED in part:
                gone = [start + row for row, flag in enumerate(part) if flag == DELETED]
                segment.dead[number] = Dead(part, sum(copy.weights[row + 1] - copy.weights[row] for row in gone))
        topic.changed = True
        self.moved += 1
        self._segment_files.unpinned(
            lambda: self._thread.submit(lambda: self._blocks.store.drop(topic.id, segment.first_seq), self._dropped)
        )
        if segment.flips:
            self._segment_files.deleted_rows(topic)

    def _dropped(self, _: None, error: Exception | None) -> None:
        # If the hot copy could not be removed, the next start uses it and moves it again.
        self.failures += error is not None
