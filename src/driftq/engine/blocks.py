"""Where the bytes of a block are right now: in memory because they are new or were read lately, or in a segment file.

Blocks that are not in their file yet stay in memory, whatever the budget says. The rest is a cache of `budget` bytes,
least recently used out first. Every block that comes from a file is verified before anybody sees it.

A reader whose page is larger than the cache has to see its first block when its last one has been read. So a block is
found for as long as anybody holds it, in the cache or not.
"""

from collections import OrderedDict
from weakref import WeakValueDictionary

from driftq.engine.segment import Segment
from driftq.errors import InternalError
from driftq.storage.block import Block
from driftq.storage.cold_store import ColdStore
from driftq.storage.segment import BlockIndex
from driftq.storage.segment_store import SegmentStore


class Usage:
    """Live records and payload bytes of the whole server."""

    __slots__ = ("payload", "records")

    def __init__(self) -> None:
        self.records = 0
        self.payload = 0


class Blocks:
    """The one door to blocks."""

    def __init__(self, store: SegmentStore, cold: ColdStore | None, budget: int) -> None:
        self.store = store
        self.cold = cold
        self.usage = Usage()
        self._budget = budget
        self._cached: OrderedDict[tuple[int, int], Block] = OrderedDict()
        self._cached_bytes = 0
        self._alive: WeakValueDictionary[tuple[int, int], Block] = WeakValueDictionary()

    def nowait(self, topic_id: int, segment: Segment, number: int) -> Block | None:
        """A block without waiting for the device, or None. Raises BlockDamagedError or OSError."""
        found = self.in_memory(segment, number)
        if found is None and not segment.cold:
            found = self.store.read_block_nowait(topic_id, segment.first_seq, segment.index, number)
            if found is not None:
                self.keep(segment, number, found)
        return found

    def load(self, topic_id: int, segment: Segment, number: int) -> Block:
        """A block, however long it takes. Raises BlockDamagedError or OSError."""
        found = self.in_memory(segment, number)
        if found is None:
            found = self.read(topic_id, segment.first_seq, segment.index, number, cold=segment.cold)
            self.keep(segment, number, found)
        return found

    def read(self, topic_id: int, first_seq: int, index: BlockIndex, number: int, *, cold: bool) -> Block:
        """A block from its file. Raises BlockDamagedError or OSError.

        For a thread: it looks at no segment, for that may move to the cold tier while the thread reads.
        """
        if cold:
            assert self.cold is not None
            return self.cold.read_block(topic_id, first_seq, index, number)
        return self.store.read_block(topic_id, first_seq, index, number)

    def keep(self, segment: Segment, number: int, block: Block) -> None:
        """Cache a block that can be read again."""
        key = (segment.uid, number)
        if key in self._cached:
            return
        self._cached[key] = self._alive[key] = block
        self._cached_bytes += len(block.frame)
        while self._cached_bytes > self._budget and len(self._cached) > 1:
            _, dropped = self._cached.popitem(last=False)
            self._cached_bytes -= len(dropped.frame)

    def forget(self, topic_id: int, segment: Segment) -> None:
        """A segment is gone, or its files are elsewhere now."""
        for number in range(len(segment.index)):
            self._alive.pop((segment.uid, number), None)
            dropped = self._cached.pop((segment.uid, number), None)
            if dropped is not None:
                self._cached_bytes -= len(dropped.frame)
        self.store.forget(topic_id, segment.first_seq)

    def in_memory(self, segment: Segment, number: int) -> Block | None:
        """A block that need not be read, or None."""
        found = segment.pending.get(number)
        if found is None:
            key = (segment.uid, number)
            found = self._cached.get(key)
            if found is None:
                return self._alive.get(key)
            self._cached.move_to_end(key)
        return found


def unreadable(error: Exception) -> InternalError:
    """What a caller is told when his records cannot be read for a reason that says nothing about them."""
    why = error.strerror if isinstance(error, OSError) else error
    return InternalError(f"records cannot be read now: {why}; they are not lost, try again")
