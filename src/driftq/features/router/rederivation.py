"""Copies made again from the log (http-v0 §11.5): same seqs, same content, none twice, none missing.

Copies have no frames. What replay knows is the source's records, the routers, and of dest the frames it has of its own:
each was made at a certain head, and what was between two of them was copies, in the one order an inflow has.

Two steps. Copies are taken from the source when they are needed, or just before the source loses their records
(`guard`), into a queue of their dest; a router's cursor stands at what has been taken. They are placed when a frame of
dest says how far its head was, and at the end all that are left, as far as there is room. So in replay

    passed by the router = placed in dest + queued

and at the end the cursors go back to what is placed; what is still queued is in the source, or is lost with it.

A record that was not copied when it might have been, because it was deleted or lost first, has a mark in the log
(`frames.RouterMarkBody`), and so has every other move of a cursor that does not follow from the log.

The seqs of copies follow from the log only as far as the source has every record that was copied. A hole that a crash
left in the source may hide records that were copied and records that never were. So in the queue it is a fence: replay
places nothing that comes after it until a mark says that routers have passed it. At the end of the log

    copies before the first fence → the head raised to the seqs that readers may have seen → a mark → the other copies

and every other fence is passed with a mark of its own. What an `fsync` dest gets is synced, so no crash takes it from
the source, and fences do not matter there.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

from driftq.engine.files.segment_files import Filing
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
    """One start's."""

    def __init__(self, table: RouterTable, filing: Filing, limits: Limits) -> None:
        self._table = table
        self._filing = filing
        self._limits = limits
        self._queues: dict[Inflow, CopyQueue] = {}
        self._ended: dict[int, list[Inflow]] = {}
        """Feeds without routers whose copies are not all placed, by the id of dest."""
        self._visiting: set[int] = set()
        self.marks: list[tuple[Topic, RouterMarkBody]] = []
        """What is to be logged about the end of replay before anything else is copied, in order."""

    def derives(self, topic: Topic, head: int | None = None) -> bool:
        """Has it copies that are made again? Those of an `ephemeral` topic end with the process."""
        if topic.durability is Durability.EPHEMERAL:
            return False
        inflows = [*self._ended.get(topic.id, ()), *self._table.inflows.get(topic.id, ())]
        return any(head is None or inflow.base < head for inflow in inflows)

    def _inflows_of(self, topic_id: int) -> list[Inflow]:
        """The inflows of a dest, in the order they were there."""
        inflows = [*self._ended.get(topic_id, ()), *self._table.inflows.get(topic_id, ())]
        return sorted(inflows, key=lambda inflow: inflow.number)

    def _queue(self, inflow: Inflow) -> CopyQueue:
        return self._queues.setdefault(inflow, CopyQueue())

    # Taking

    def guard(self, topic: Topic) -> None:
        """Some of its records are about to go."""
        for inflow in list(self._table.out.get(topic.id, ())):
            self._take_upto(inflow, topic.head)

    def forget_unlogged(self, source: Topic, head: int) -> None:
        """Let the routers out of an `ephemeral` source stand at a head that a frame of it names.

        What they copied of the records that the log does not have is logged with a mark. The rest ended with the
        process, in silence: to the floors that the frame names too, those records would be lost ones.
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
        """The next records of an inflow's source, if there are any."""
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

    # Placing

    def derive(self, topic: Topic, head: int, ts: int, *, reach: Callable[[Topic], bool]) -> None:
        """Place copies until the head is there, or as far as they go."""
        if topic.id in self._visiting or not self.derives(topic):
            return
        self._visiting.add(topic.id)
        for inflow in self._inflows_of(topic.id):
            if topic.durability is Durability.DISK and topic.head < inflow.base:
                if head <= inflow.base:
                    break  # it had not begun: no copy of it is missing
                topic.skip_to(inflow.base, Reason.CRASH, at_most=True)
            queue = self._queue(inflow)
            while topic.head < head and not queue.is_fenced(topic):
                if queue.waiting:
                    self._place(topic, queue, head - topic.head, ts)
                elif not (self._take(inflow, inflow.source.head) or self._pull(inflow, ts, reach)):
                    break
            if queue.waiting or (inflow.routers and not reach(inflow.source)):
                break  # what comes behind it was behind it in dest, too
            self._settle(inflow)
        self._visiting.discard(topic.id)

    def _settle(self, inflow: Inflow) -> None:
        """Nothing of it waits: let it go if it has ended."""
        if not inflow.routers:
            self._queues.pop(inflow, None)
            ended = self._ended.get(inflow.dest_id, [])
            if inflow in ended:
                ended.remove(inflow)
                if not ended:
                    del self._ended[inflow.dest_id]

    def _pull(self, inflow: Inflow, ts: int, reach: Callable[[Topic], bool]) -> bool:
        """One more record in a source that is itself copied into."""
        if not inflow.routers or not reach(inflow.source):
            return False
        before = inflow.source.head
        self.derive(inflow.source, before + 1, ts, reach=reach)
        return inflow.source.head > before

    def _place(self, topic: Topic, queue: CopyQueue, most: int, ts: int) -> None:
        """Place some of the first that waits, which is not a fence."""
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
            self._filing.roll(topic)
        queue.placed += count
        if queue.placed == total:
            queue.waiting.popleft()
            queue.placed = 0

    # What the log says beside

    def mark(self, topic: Topic, body: RouterMarkBody) -> None:
        """Routers stood at these cursors: what was not copied until then never was."""
        cursors = dict(body.cursors)
        for inflow in self._inflows_of(topic.id):
            self._queue(inflow).drop(lambda seq, router: seq <= cursors.get(router.number, 0))
        for number, cursor in body.cursors:
            router = self._table.by_number.get(number)
            if router is not None:
                router.cursor = max(router.cursor, cursor)
                router.copied_to = max(router.copied_to, cursor)

    def retire(self, router: Router, cursor: int) -> None:
        """A router was deleted when it had come so far: its copies up to there are still to be placed."""
        inflow = router.inflow
        if router.cursor < cursor:
            self._take_upto(inflow, cursor)
        queue = self._queue(inflow)
        queue.drop(lambda seq, owner: owner is router and seq > cursor)
        if inflow.routers == [router] and queue.waiting:
            self._ended.setdefault(inflow.dest_id, []).append(inflow)

    def forget(self, topic: Topic) -> None:
        """A topic is gone."""
        for inflow in self._inflows_of(topic.id):
            self._queues.pop(inflow, None)
        self._ended.pop(topic.id, None)

    # The end

    def order(self, feeds: Sequence[tuple[int, int]] = ()) -> list[Topic]:
        """Return the topics with copies and their sources, sources first; a cycle is cut somewhere."""
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
        """Place what is left, as far as there is room; the rest is copied later, from the source."""
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
                    self._place(topic, queue, BLOCK_RECORDS_MAX, now)  # it was there, so there was room
            for router, cursor in self._standing(inflow):
                router.cursor = inflow.source.head if topic.durability is Durability.EPHEMERAL else cursor
            self._queues.pop(inflow, None)
        self._ended.pop(topic.id, None)
        self._raise(topic, settle)

    def _raise(self, topic: Topic, settle: Callable[[Topic], None], *, passed_fence: bool = False) -> None:
        """Raise the head to the seqs that readers may have seen, and note a mark of it, and of a fence."""
        before = topic.head
        settle(topic)
        inflow = self._table.inflow(topic.id)
        if inflow is not None and (topic.head > before or passed_fence):
            cursors = [(router.number, cursor) for router, cursor in self._standing(inflow)]
            raised = topic.head if topic.head > before else 0
            self.marks.append((topic, RouterMarkBody(before, cursors, raised=raised)))

    def _standing(self, inflow: Inflow) -> list[tuple[Router, int]]:
        """The routers of an inflow, and up to where everything of the source that they take is placed."""
        back = self._queue(inflow).back()
        return [(router, min(back.get(router, router.cursor), inflow.source.head)) for router in inflow.routers]

    def _refill(self, inflow: Inflow, queue: CopyQueue) -> bool:
        while not queue.waiting and self._take(inflow, inflow.source.head):
            pass
        return bool(queue.waiting)

    def _place_fitting(self, topic: Topic, queue: CopyQueue, now: int) -> bool:
        """Place what there is room for of the first that waits. Returns whether that was all of it."""
        entry = queue.waiting[0]
        if not isinstance(entry, CopyBatch):
            return False  # what a live router finds lost it logs
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
    """What is behind a cursor, however long it takes."""
    held: list[RowSource | None] = []  # until it has been looked at: the cache may be smaller
    while True:
        found = look(source, low, upto, BLOCK_RECORDS_MAX)
        if not isinstance(found, Missing | Damaged):
            return found
        held.append(source.source(found.part))


def _records(topic: Topic, rows: Rows, ts: int) -> Rows | Block:
    if rows.count < OWN_BLOCK_RECORDS:
        return rows
    return Block.of(encode_block(rows, topic_id=topic.id, first_seq=topic.head + 1, ts=max(ts, topic.last_ts)))
