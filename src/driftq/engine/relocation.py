"""Sealed segments beyond the hot bound move to the cold tier, on the file thread, while everybody reads and deletes.

    hot → copied (a durable cold pair) → flags level → switched → hot copy removed

Deletes that come while a segment is moving are marked in memory and logged as ever; their flags are not flipped in the
hot copy but, before the switch, in the cold one. A crash at any point leaves a good copy, and the hot one counts.
"""

from array import array
from itertools import accumulate

from driftq.config import Settings
from driftq.engine.blocks import Blocks
from driftq.engine.catalog import Catalog
from driftq.engine.filing import FileThread
from driftq.engine.segment import Dead, Segment
from driftq.engine.topic import Topic
from driftq.storage.frame import DELETED
from driftq.storage.segment import BlockIndex


class _Copy:
    """What the thread brings back: the cold index, and running payload totals of all rows."""

    __slots__ = ("flags", "index", "weights")

    def __init__(self, index: BlockIndex, flags: bytearray, weights: "array[int]") -> None:
        self.index = index
        self.flags = flags
        self.weights = weights


class Relocation:
    """Moves segments, one at a time per topic."""

    def __init__(self, settings: Settings, thread: FileThread, blocks: Blocks, catalog: Catalog) -> None:
        self._retain_segments = settings.hot_retain_segments
        self._retain_bytes = settings.hot_retain_bytes
        self._thread = thread
        self._blocks = blocks
        self._catalog = catalog
        self.moved = 0
        self.failures = 0

    def run(self) -> None:
        """Begin to move what is beyond the bound."""
        for topic in self._catalog.visible():
            for segment in self._beyond(topic):
                self._copy(topic, segment)

    def _beyond(self, topic: Topic) -> list[Segment]:
        """Hot sealed segments that may go, oldest first."""
        hot = [segment for segment in topic.segments if segment.sealed and not segment.cold and not segment.resident]
        kept = min(self._retain_segments, len(hot))
        if self._retain_bytes:
            sizes = list(accumulate(segment.data_bytes for segment in reversed(hot)))
            kept = min(kept, sum(1 for size in sizes if size <= self._retain_bytes))
        return [segment for segment in hot[: len(hot) - kept] if not segment.moving]

    def _copy(self, topic: Topic, segment: Segment) -> None:
        segment.moving = True
        flags = bytearray()
        for number in range(len(segment.index)):
            dead = segment.dead.get(number)
            flags += dead.flags if dead is not None else bytes(segment.index.count(number))

        def work() -> _Copy:
            cold, store = self._blocks.cold, self._blocks.store
            assert cold is not None
            numbers = range(len(segment.index))
            blocks = [store.read_block(topic.id, segment.first_seq, segment.index, number) for number in numbers]
            weights = array("q", (0,))
            for block in blocks:
                base = weights[-1]
                weights.extend([base + weight for weight in block.weights(0, block.count)[1:]])
            return _Copy(cold.write(topic.id, segment.first_seq, blocks, bytes(flags)), flags, weights)

        def done(copy: _Copy | None, error: Exception | None) -> None:
            if copy is None or error is not None:
                # A damaged block keeps its segment where it is; anything else is tried again by the next run.
                self.failures += 1
                segment.moving = False
            else:
                self._level(topic, segment, copy)

        self._thread.submit(work, done)

    def _level(self, topic: Topic, segment: Segment, copy: _Copy) -> None:
        """Bring the deletes that came meanwhile to the cold flags; switch when there are none left."""
        if segment not in topic.segments:
            return
        rows = [
            segment.row_number(number, row)
            for number, found in segment.flips.items()
            for row in found
            if copy.flags[segment.row_number(number, row)] != DELETED
        ]
        if not rows:
            self._switch(topic, segment, copy)
            return
        cold = self._blocks.cold
        assert cold is not None

        def done(_: None, error: Exception | None) -> None:
            if error is not None:
                self.failures += 1
                segment.moving = False
                return
            for row in rows:
                copy.flags[row] = DELETED
            self._level(topic, segment, copy)

        self._thread.submit(lambda: cold.flip(topic.id, segment.first_seq, rows), done)

    def _switch(self, topic: Topic, segment: Segment, copy: _Copy) -> None:
        """From here on the cold copy is the segment."""
        flags = bytearray()
        for number in range(len(segment.index)):
            dead = segment.dead.get(number)
            flags += dead.flags if dead is not None else bytes(segment.index.count(number))
        self._blocks.forget(topic.id, segment)
        segment.cold, segment.moving = True, False
        segment.index = copy.index
        segment.written_blocks = segment.durable_blocks = len(copy.index)
        segment.flips.clear()
        segment.dead.clear()
        start = 0
        for number in range(len(copy.index)):
            count = copy.index.count(number)
            part = flags[start : start + count]
            if DELETED in part:
                gone = sum(
                    copy.weights[start + row + 1] - copy.weights[start + row]
                    for row, flag in enumerate(part)
                    if flag == DELETED
                )
                segment.dead[number] = Dead(part, gone)
            start += count
        topic.changed = True
        self.moved += 1
        self._thread.submit(lambda: self._blocks.store.drop(topic.id, segment.first_seq), self._dropped)

    def _dropped(self, _: None, error: Exception | None) -> None:
        # A hot copy that could not be removed wins at the next start, and moves again.
        self.failures += error is not None
