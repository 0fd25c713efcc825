"""Finds the bytes of a block: in memory because it is new or was read recently, or in a segment file.

Blocks that are not in their file yet stay in memory, and so do, for a while, blocks that a checkpoint copies. The cache
gets what these two leave of `budget` bytes and drops the least recently used blocks first. So the total stays within
the budget as long as the first two do; records of `ephemeral` topics are not counted. Every block that comes from a
file is verified before it is returned.

A segment is in one of these states. The state is not stored: every read finds it again.
- readable: its files return bytes whose checksums match.
- unavailable: a call on a file failed with an errno (ENOENT, EIO, ESTALE, ...) or took too long. The records may be
  intact. A caller gets `SegmentUnavailableError`; background work tries again later.
- damaged: the file exists, in a directory that carries this server's mark, and a checksum does not match
  (`BlockDamagedError`). Only this proof makes a hole.
- given up: all its records are holes. Its files are not part of the log any more.

A reader whose page is larger than the cache needs its first block again after its last one has been read. So a block
can be found as long as any reader holds it, even if it has left the cache.
"""

from collections import OrderedDict
from weakref import WeakValueDictionary

from driftq.engine.state.segment import Segment
from driftq.errors import ColdUnavailableError, SegmentUnavailableError
from driftq.storage.blocks.block import Block
from driftq.storage.segments.block_index import BlockIndex
from driftq.storage.segments.cold_store import ColdStore
from driftq.storage.segments.hot_store import SegmentStore

RETRY_AFTER_MS = 1000


class Usage:
    """Live records and payload bytes of the whole server."""

    __slots__ = ("payload", "records")

    def __init__(self) -> None:
        self.records = 0
        self.payload = 0


class Blocks:
    """The only way to get a block: from memory, from a hot file or from a cold file."""

    def __init__(self, store: SegmentStore, cold: ColdStore | None, budget: int) -> None:
        self.store = store
        self.cold = cold
        self.usage = Usage()
        self._budget = budget
        self._cached: OrderedDict[tuple[int, int], Block] = OrderedDict()
        self._cached_bytes = 0
        self._unwritten: dict[tuple[int, int], int] = {}
        self._held_bytes = 0
        self.unwritten_bytes = 0
        """Bytes of blocks that are in no file yet and so cannot leave memory."""
        self._alive: WeakValueDictionary[tuple[int, int], Block] = WeakValueDictionary()

    @property
    def kept_bytes(self) -> int:
        """Return the bytes of the budget that are in use: blocks, written or not, and bytes counted with `lend`."""
        return self._cached_bytes + self._held_bytes

    def add(self, segment: Segment, block: Block, *, last_ts: int, payload: int) -> int:
        """Append a closed block that is not in its file yet to its segment. Returns its number."""
        number = segment.add(block, last_ts=last_ts, payload=payload)
        if not segment.resident:
            self._unwritten[segment.uid, number] = len(block.frame)
            self.unwritten_bytes += len(block.frame)
            self.lend(len(block.frame))
        return number

    def written(self, segment: Segment, number: int) -> None:
        """Mark a block as written to its file, so that it may leave memory."""
        self._uncount(segment, number)
        self.keep(segment, number, segment.pending.pop(number))

    def lend(self, size: int) -> None:
        """Count bytes that a caller holds for a while against the budget; a negative number takes them off again."""
        self._held_bytes += size
        self._shrink()

    def _uncount(self, segment: Segment, number: int) -> None:
        size = self._unwritten.pop((segment.uid, number), 0)
        self._held_bytes -= size
        self.unwritten_bytes -= size

    def _shrink(self) -> None:
        while self.kept_bytes > self._budget and len(self._cached) > 1:
            _, dropped = self._cached.popitem(last=False)
            self._cached_bytes -= len(dropped.frame)

    def nowait(self, topic_id: int, segment: Segment, number: int) -> Block | None:
        """Return a block if that needs no wait for the device, else None. Raises BlockDamagedError or OSError."""
        found = self.in_memory(segment, number)
        if found is None and not segment.cold:
            found = self.store.read_block_nowait(topic_id, segment.first_seq, segment.index, number)
            if found is not None:
                self.keep(segment, number, found)
        return found

    def load(self, topic_id: int, segment: Segment, number: int) -> Block:
        """Return a block, even if the read takes long. Raises BlockDamagedError or OSError."""
        found = self.in_memory(segment, number)
        if found is None:
            found = self.read(topic_id, segment.first_seq, segment.index, number, cold=segment.cold)
            self.keep(segment, number, found)
        return found

    def read(self, topic_id: int, first_seq: int, index: BlockIndex, number: int, *, cold: bool) -> Block:
        """Read a block from its file. Raises BlockDamagedError or OSError.

        Safe on a thread: it uses no Segment, because that may move to the cold tier while the thread reads.
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
        self._shrink()

    def forget(self, topic_id: int, segment: Segment) -> None:
        """Drop the blocks of a segment that is deleted, or whose files have moved."""
        for number in range(len(segment.index)):
            self._uncount(segment, number)
            self._alive.pop((segment.uid, number), None)
            dropped = self._cached.pop((segment.uid, number), None)
            if dropped is not None:
                self._cached_bytes -= len(dropped.frame)
        self.store.forget(topic_id, segment.first_seq)

    def in_memory(self, segment: Segment, number: int) -> Block | None:
        """Return a block that is in memory, else None."""
        found = segment.pending.get(number)
        if found is None:
            key = (segment.uid, number)
            found = self._cached.get(key)
            if found is None:
                return self._alive.get(key)
            self._cached.move_to_end(key)
        return found


def unavailable(error: Exception, *, cold: bool) -> SegmentUnavailableError:
    """Return the error for a caller whose records cannot be read now."""
    why = (error.strerror or str(error)) if isinstance(error, OSError) else repr(error)
    if cold:
        return ColdUnavailableError(
            f"records in the cold tier cannot be read now ({why}); they are not lost, try again",
            retry_after_ms=RETRY_AFTER_MS,
        )
    return SegmentUnavailableError(
        f"records cannot be read now ({why}); they are not lost, try again", retry_after_ms=RETRY_AFTER_MS
    )
