"""Recreates copies from the log (http-v0 §11.5): same seqs, same content, none twice, none missing.

Copies have no frames. Replay has the source's records, the routers, and the frames of dest itself. Each of these
frames was made at a known head, and the seqs between two of them were copies, in the one order of an inflow.

There are two steps. Copies are taken from the source when they are needed, or just before the source loses their
records (`guard`), into a queue of their dest; a router's cursor is at the last record that was taken. Copies are
placed when a frame of dest shows how far its head was; at the end all others are placed, as far as there is room. So
in replay

    passed by the router = placed in dest + queued

and at the end the cursors go back to what is placed. Queued copies are still in the source, or are lost with it.

A record that was deleted or lost before it could be copied has a mark in the log (`router_frames.RouterMarkBody`), and
so has every other move of a cursor that does not follow from the log.

The seqs of copies follow from the log only as far as the source has every record that was copied. A hole that a crash
left in the source may hide records that were copied and records that were not. So in the queue it is a fence: replay
places nothing after it until a mark shows that routers have passed it. At the end of the log

    copies before the first fence → the head raised to the seqs that readers may have seen → a mark → the other copies

and every other fence is passed with a mark of its own. An `fsync` dest gets only synced records, which no crash takes
from the source, so fences do not matter there.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

from driftq.engine.files.segment_files import SegmentFiles
from driftq.engine.read.topic_page import Damaged, Missing
from driftq.engine.state.topic import Topic
from driftq.engine.write.copier import fitting
from driftq.engine.write.state_changes import apply_append
from driftq.features.router.copies import CopyBatch, copies_of, first_too_large
from driftq.features.router.copy_queue import CopyQueue, Fence, Slots
from driftq.features.router.destination import Inflow, Router, SourceGap, SourceRun, look
from driftq.features.router.router_frames import RouterMarkBody
from driftq.features.router.router_table import RouterTable
from driftq.model.limits import BLOCK_RECORDS_MAX, OWN_BLOCK_RECORDS, Limits
from driftq.model.tombstone import Reason
from driftq.model.topic_config import Durability
from driftq.storage.blocks.block import Block, RowSource, encode_block
from driftq.storage.blocks.rows import Rows


class Rederiver:
    """Recreates the copies of one start."""

    def __init__(self, table: RouterTable, segment_files: SegmentFiles, limits: Limits) -> None:
        self._table = table
        self._segment_files = segment_files
        self._limits = limits
        self._queues: dict[Inflow, CopyQueue] = {}
        self._ended: dict[int, list[Inflow]] = {}
        """Inflows without routers whose copies are not all placed, by the id of dest."""
        self._visiting: set[int] = set()
        self.marks: list[tuple[Topic, RouterMarkBody]] = []
        """Marks about the end of replay, in order. They are logged before anything else is copied."""

    def derives(self, topic: Topic, head: int | None = None) -> bool:
        """Whether a topic has copies that are recreated. Copies in an `ephemeral` topic end with the process."""
        if topic.durability is Durability.EPHEMERAL:
            return False
        inflows = [*self._ended.get(topic.id, ()), *self._table.inflows.get(topic.id, ())]
        return any(head is None or inflow.base < head for inflow in inflows)

    def _inflows_of(self, topic_id: int) -> list[Inflow]:
        """Return the inflows of a dest in the order in which they existed."""
        inflows = [*self._ended.get(topic_id, ()), *self._table.inflows.get(topic_id, ())]
        return sorted(inflows, key=lambda inflow: inflow.number)

    def _queue(self, inflow: Inflow) -> CopyQueue:
        return self._queues.setdefault(inflow, CopyQueue())

    # Taking copies from the source

    def guard(self, topic: Topic) -> None:
        """Take all records of a topic for its routers, because some are about to be removed."""
        for inflow in list(self._table.out.get(topic.id, ())):
            self._take_upto(inflow, topic.head)

    def forget_unlogged(self, source: Topic, head: int) -> None:
        """Move the routers out of an `ephemeral` source to a head that one of its frames names.

        A mark logs what they copied of records that are not in the log. The other unlogged records ended with the
        process and are not reported; without this move, the floors in the same frame would make them count as lost.
        """
        if head > source.head:
            for inflow in list(self._table.out.get(source.id, ())):
                self._take_upto(inflow, source.head)
                for router in inflow.routers:
                    router.cursor = max(router.cursor, head)

    def _take_upto(self, inflow: Inflow, seq: int) -> None:
        while inflow.routers and inflow.low < seq and self._take(inflow, seq):
            pass

    def _take(self, inflow: Inflow, upto: int) -> bool:
        """Take the next records from the source of an inflow. Return False if there are none."""
        if not inflow.routers:
            return False
        low, source = inflow.low, inflow.source
        upto = min(upto, source.head)
        if low >= upto:
            return False
        upto, made, active = inflow.border(low, upto, self._table.hops.get(source.id))
        found = _look_now(source, low, upto)
        queue = self._queue(inflow)
        if isinstance(found, SourceGap):
            owners = [router for router, _ in active]
            if found.lost:
                queue.waiting.append(Slots(owners, found.lost, low + 1))
            elif found.crash:
                queue.waiting.append(Fence(owners, low + 1, found.last))
            last = found.last
        else:
            batch = copies_of(found, source, active, made)
            if batch.count:
                queue.waiting.append(batch)
            last = found.last_seq
        for router, _ in active:
            router.cursor = max(router.cursor, last)
        return True

    # Placing copies in dest

    def derive(self, topic: Topic, head: int, ts: int, *, reach: Callable[[Topic], bool]) -> None:
        """Place copies until dest reaches `head`, or until there are no more."""
        if topic.id in self._visiting or not self.derives(topic):
            return
        self._visiting.add(topic.id)
        for inflow in self._inflows_of(topic.id):
            if topic.durability is Durability.DISK and topic.head < inflow.base:
                if head <= inflow.base:
                    break  # the inflow began above this head, so none of its copies is missing
                topic.skip_to(inflow.base, Reason.CRASH, at_most=True)
            queue = self._queue(inflow)
            while topic.head < head and not queue.is_fenced(topic):
                if queue.waiting:
                    self._place(topic, queue, head - topic.head, ts)
                elif not (self._take(inflow, inflow.source.head) or self._pull(inflow, ts, reach)):
                    break
            if queue.waiting or (inflow.routers and not reach(inflow.source)):
                break  # later copies were after these in dest, too
            self._settle(inflow)
        self._visiting.discard(topic.id)

    def _settle(self, inflow: Inflow) -> None:
        """Forget an inflow that has ended and whose copies are all placed."""
        if not inflow.routers:
            self._queues.pop(inflow, None)
            ended = self._ended.get(inflow.dest_id, [])
            if inflow in ended:
                ended.remove(inflow)
                if not ended:
                    del self._ended[inflow.dest_id]

    def _pull(self, inflow: Inflow, ts: int, reach: Callable[[Topic], bool]) -> bool:
        """Recreate one more record in a source that itself has copies. Return whether there was one."""
        if not inflow.routers or not reach(inflow.source):
            return False
        before = inflow.source.head
        self.derive(inflow.source, before + 1, ts, reach=reach)
        return inflow.source.head > before

    def _place(self, topic: Topic, queue: CopyQueue, most: int, ts: int) -> None:
        """Place up to `most` copies of the first queued entry, which must not be a fence."""
        entry = queue.waiting[0]
        assert not isinstance(entry, Fence)
        start = queue.placed
        if isinstance(entry, Slots):
            total = entry.lost * len(entry.owners)
            count = min(most, total - start)
            topic.skip_to(topic.head + count, Reason.SOURCE_TRIM)
            for place in range(start, start + count):
                entry.owners[place % len(entry.owners)].forwarded += 1
        else:
            total = entry.count
            count = min(most, total - start, BLOCK_RECORDS_MAX)
            first = topic.head + 1
            apply_append(topic, _records(topic, entry.rows(start, start + count), ts), max(ts, topic.last_ts))
            self._table.note_hops(topic, first, topic.head, entry.hops)
            for place in range(start, start + count):
                owner = entry.owners[place]
                owner.forwarded += 1
                owner.copied_to = max(owner.copied_to, entry.seqs[place])
            self._segment_files.roll(topic)
        queue.placed += count
        if queue.placed == total:
            queue.waiting.popleft()
            queue.placed = 0

    # Other frames of the log

    def mark(self, topic: Topic, body: RouterMarkBody) -> None:
        """Apply the cursors of a mark: records up to them that were not copied by then never will be."""
        cursors = dict(body.cursors)
        for inflow in self._inflows_of(topic.id):
            self._queue(inflow).drop(lambda seq, router: seq <= cursors.get(router.number, 0))
        for number, cursor in body.cursors:
            router = self._table.by_number.get(number)
            if router is not None:
                router.cursor = max(router.cursor, cursor)
                router.copied_to = max(router.copied_to, cursor)

    def retire(self, router: Router, cursor: int) -> None:
        """Delete a router that has come as far as `cursor`; its copies up to there are still to be placed."""
        inflow = router.inflow
        if router.cursor < cursor:
            self._take_upto(inflow, cursor)
        queue = self._queue(inflow)
        queue.drop(lambda seq, owner: owner is router and seq > cursor)
        if inflow.routers == [router] and queue.waiting:
            self._ended.setdefault(inflow.dest_id, []).append(inflow)

    def forget(self, topic: Topic) -> None:
        """Forget the queued copies of a deleted topic."""
        for inflow in self._inflows_of(topic.id):
            self._queues.pop(inflow, None)
        self._ended.pop(topic.id, None)

    # The end of replay

    def order(self, feeds: Sequence[tuple[int, int]] = ()) -> list[Topic]:
        """Return the topics with copies and their sources, sources first; a cycle is cut at some point."""
        sources: dict[int, list[int]] = defaultdict(list)
        for topic_id in {*self._table.inflows, *self._ended}:
            sources[topic_id] += [inflow.source.id for inflow in self._inflows_of(topic_id)]
        for source_id, dest_id in feeds:
            sources[dest_id].append(source_id)
        ordered: dict[int, Topic] = {}
        seen: set[int] = set()

        def visit(topic_id: int) -> None:
            if topic_id in seen:
                return
            seen.add(topic_id)
            for source_id in sources.get(topic_id, ()):
                visit(source_id)
            topic = self._table.topic(topic_id)
            if topic is not None:
                ordered[topic_id] = topic

        for topic_id in sorted(sources):
            visit(topic_id)
        return list(ordered.values())

    def finish(self, topic: Topic, now: int, settle: Callable[[Topic], None]) -> None:
        """Place the remaining copies, as far as there is room. The others are copied from the source later."""
        blocked = topic.durability is Durability.EPHEMERAL
        for inflow in self._inflows_of(topic.id):
            if topic.durability is Durability.DISK:
                topic.skip_to(inflow.base, Reason.CRASH, at_most=True)
            queue = self._queue(inflow)
            while not blocked and (queue.waiting or self._refill(inflow, queue)):
                if queue.is_fenced(topic):
                    queue.waiting.popleft()
                    self._raise(topic, settle, passed_fence=True)
                elif inflow.routers:
                    blocked = bool(queue.waiting) and not self._place_fitting(topic, queue, now)
                elif queue.waiting:
                    self._place(topic, queue, BLOCK_RECORDS_MAX, now)  # these copies existed, so there was room
            for router, cursor in self._standing(inflow):
                router.cursor = inflow.source.head if topic.durability is Durability.EPHEMERAL else cursor
            self._queues.pop(inflow, None)
        self._ended.pop(topic.id, None)
        self._raise(topic, settle)

    def _raise(self, topic: Topic, settle: Callable[[Topic], None], *, passed_fence: bool = False) -> None:
        """Raise the head to the seqs that readers may have seen, and add a mark for that or for a passed fence."""
        before = topic.head
        settle(topic)
        inflow = self._table.inflow(topic.id)
        if inflow is not None and (topic.head > before or passed_fence):
            cursors = [(router.number, cursor) for router, cursor in self._standing(inflow)]
            raised = topic.head if topic.head > before else 0
            self.marks.append((topic, RouterMarkBody(before, cursors, raised=raised)))

    def _standing(self, inflow: Inflow) -> list[tuple[Router, int]]:
        """Return the routers of an inflow, each with the source seq up to which all its copies are placed."""
        back = self._queue(inflow).back()
        return [(router, min(back.get(router, router.cursor), inflow.source.head)) for router in inflow.routers]

    def _refill(self, inflow: Inflow, queue: CopyQueue) -> bool:
        while not queue.waiting and self._take(inflow, inflow.source.head):
            pass
        return bool(queue.waiting)

    def _place_fitting(self, topic: Topic, queue: CopyQueue, now: int) -> bool:
        """Place as much of the first queued entry as there is room for. Return whether all of it was placed."""
        entry = queue.waiting[0]
        if not isinstance(entry, CopyBatch):
            return False  # lost records are logged by the router in live operation
        limits = self._limits
        quota = limits.total_bytes_max - topic.usage.payload if limits.total_bytes_max else None
        sizes = entry.sizes()
        topic.expire_at(now)
        fit = fitting(topic, sizes[queue.placed :], quota)
        large = first_too_large(entry, sizes, limits.record_bytes_max)
        fit = fit if large is None else min(fit, large - queue.placed)
        left = entry.count - queue.placed
        while fit > 0:
            before = queue.placed
            self._place(topic, queue, fit, now)
            fit -= queue.placed - before if queue.placed else fit
            left = entry.count - queue.placed if queue.placed else 0
        return left == 0


def _look_now(source: Topic, low: int, upto: int) -> SourceRun | SourceGap:
    """Return what follows a cursor, loading blocks from disk if needed."""
    held: list[RowSource | None] = []  # keeps the block in memory; the cache may be too small for it
    while True:
        found = look(source, low, upto, BLOCK_RECORDS_MAX)
        if not isinstance(found, Missing | Damaged):
            return found
        held.append(source.source(found.part))


def _records(topic: Topic, rows: Rows, ts: int) -> Rows | Block:
    if rows.count < OWN_BLOCK_RECORDS:
        return rows
    return Block.of(encode_block(rows, topic_id=topic.id, first_seq=topic.head + 1, ts=max(ts, topic.last_ts)))
