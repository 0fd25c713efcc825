"""The read path: one page of a topic after a cursor, with the exact window and byte budget of http-v0 §8.

`read_page` never waits. If a block is not in memory, it returns `Missing`; if a block is damaged, it returns `Damaged`,
and the engine logs a hole before any reader gets an answer. The caller then asks again. If a block is unavailable, the
reader gets a `SegmentUnavailableError`, and nothing has changed.

A page contains positions, not records: ranges of rows of blocks. Rendering copies the bytes of those rows.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple

from driftq.engine.state.block_cache import unavailable
from driftq.engine.state.record_log import LogPart
from driftq.engine.state.topic import Topic
from driftq.model.limits import (
    BULK_BYTES_MAX,
    BULK_RECORDS,
    BULK_RECORDS_MAX,
    PAGE_BYTES,
    PAGE_BYTES_MAX,
    PAGE_RECORDS,
)
from driftq.model.tombstone import Hole, Reason, Tombstone
from driftq.storage.blocks.block import RowSource
from driftq.storage.blocks.delete_flags import FLAGS_TO_LIVE
from driftq.storage.segments.hot_store import BlockDamagedError


class Slice(NamedTuple):
    """Rows of one block, in ascending order."""

    source: RowSource
    rows: Sequence[int]


class Page(NamedTuple):
    """One page of records for a reader, and the state of the topic."""

    slices: list[Slice]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: Tombstone | None
    scanned: int
    cold_segments: int = 0
    """Number of cold segments that were read for the page."""
    epoch: int = 0
    """Id of the topic; differs after a delete and recreation under the same name."""

    @property
    def caught_up(self) -> bool:
        """Whether the page ends at the head."""
        return self.next_from_seq == self.head_seq

    @property
    def lag(self) -> int:
        """Return how many seqs are left between the end of the page and the head."""
        return self.head_seq - self.next_from_seq

    @property
    def size(self) -> int:
        """Return the number of records on the page."""
        return sum(len(part.rows) for part in self.slices)


class Missing(NamedTuple):
    """A block that must be fetched first. The fetch keeps the other blocks of the page in memory meanwhile."""

    part: LogPart
    others: list[RowSource]


class Damaged(NamedTuple):
    """A damaged block; it becomes a hole once that is logged."""

    part: LogPart
    why: str


class PageQuery(NamedTuple):
    """What a reader asks for; `clamped` limits the sizes."""

    from_seq: int = 0
    limit: int = PAGE_RECORDS
    nodes: frozenset[bytes] = frozenset()
    max_batch_bytes: int = PAGE_BYTES
    up_to: int | None = None
    """Read as if the log ended at this seq; a cursor above it stays where it is."""
    bulk: bool = False
    """Whether the page may be as large as an Arrow page."""
    epoch: int | None = None
    """The epoch of the topic that the cursor comes from; None if the reader does not know it."""

    def clamped(self, limit_max: int) -> "PageQuery":
        """Return the query with zero replaced by the default and sizes limited to the maximum."""
        if self.bulk:
            return self._replace(
                limit=min(self.limit or BULK_RECORDS, BULK_RECORDS_MAX),
                max_batch_bytes=min(self.max_batch_bytes or BULK_BYTES_MAX, BULK_BYTES_MAX),
            )
        return self._replace(
            limit=min(self.limit or PAGE_RECORDS, limit_max),
            max_batch_bytes=min(self.max_batch_bytes or PAGE_BYTES, PAGE_BYTES_MAX),
        )


def read_page(topic: Topic, query: PageQuery) -> Page | Missing | Damaged:
    """Return the page after a cursor. The caller has applied retention."""
    tombstone, cursor = _tombstone(topic, query)
    stop = 1 + (topic.head if query.up_to is None else min(query.up_to, topic.head))
    hole = topic.holes.at_or_after(cursor + 1)
    if hole is not None and hole.first < stop:
        if tombstone is None and not _live_between(topic, cursor + 1, hole.first):
            tombstone = _hole_tombstone(topic, max(cursor + 1, hole.first), hole)
            cursor = hole.last
            following = topic.holes.at_or_after(cursor + 1)
            stop = min(stop, following.first) if following is not None else stop
        else:
            stop = hole.first
    window = _Window(topic, query, cursor, stop)
    failed = window.fill()
    if failed is not None:
        return failed
    return Page(
        window.slices,
        window.next_from_seq,
        topic.head,
        topic.earliest,
        tombstone,
        window.scanned,
        len(window.cold),
        topic.id,
    )


def rows_nowait(topic: Topic, part: LogPart, others: list[RowSource]) -> RowSource | Missing | Damaged:
    """Return the rows of a part, or why they cannot be returned without waiting. Raises SegmentUnavailableError."""
    try:
        source = topic.source_nowait(part)
    except BlockDamagedError as error:
        return Damaged(part, str(error))
    except OSError as error:
        raise unavailable(error, cold=part.segment.cold) from error
    return Missing(part, others) if source is None else source


def _tombstone(topic: Topic, query: PageQuery) -> tuple[Tombstone | None, int]:
    """Return the tombstone for records below the floor that a cursor missed, and the cursor to read from.

    A cursor above the head of the same epoch has missed nothing and continues at the head, unless a crash may have
    moved the head back.
    """
    from_seq, epoch = query.from_seq, query.epoch
    if epoch == topic.id and from_seq > topic.head and topic.keeps_head:
        return None, topic.head
    if from_seq > topic.head or (epoch is not None and epoch != topic.id):
        gap = _gap(topic, 1, topic.head, Reason.RECREATED)
        return gap, topic.earliest - 1
    if from_seq + 1 >= topic.evict_floor:
        return None, from_seq
    by_cap = topic.cap_lost > from_seq
    by_ttl = topic.ttl_lost > from_seq
    reason = Reason.MIXED if by_cap and by_ttl else Reason.CAP if by_cap else Reason.TTL
    return _gap(topic, from_seq + 1, topic.earliest - 1, reason), topic.earliest - 1


def _gap(topic: Topic, first: int, last: int, reason: Reason) -> Tombstone:
    return Tombstone(
        seq=topic.earliest,
        gap_from=first,
        gap_to=last,
        reason=reason,
        missed_estimate=max(0, last - first + 1),
        earliest_seq=topic.earliest,
        head_seq=topic.head,
    )


def _hole_tombstone(topic: Topic, first: int, hole: Hole) -> Tombstone:
    return Tombstone(
        seq=hole.last + 1,
        gap_from=first,
        gap_to=hole.last,
        reason=hole.reason,
        missed_estimate=hole.last - first + 1,
        earliest_seq=topic.earliest,
        head_seq=topic.head,
        at_most=hole.at_most,
    )


def _live_between(topic: Topic, first: int, end: int) -> bool:
    """Whether any record of [first, end) is live."""
    if first >= end or topic.earliest >= end:
        return False
    for part in topic.parts(max(first, topic.earliest)):
        if part.first_seq >= end:
            return False
        dead = topic.dead_of(part)
        low, high = max(first - part.first_seq, 0), min(end, part.end_seq) - part.first_seq
        if dead is None or dead.first_live(low) < high:
            return True
    return False


class _Window:
    """Collects up to `limit` live records after a cursor, and delivers those that pass filter and byte budget."""

    def __init__(self, topic: Topic, query: PageQuery, cursor: int, stop: int) -> None:
        self._topic = topic
        self._query = query
        self._nodes = query.nodes if topic.config.dedupe_node else frozenset()
        self._cursor = cursor
        self._stop = stop
        self._room = query.max_batch_bytes
        self._delivered = 0
        self._sources: list[RowSource] = []
        self.slices: list[Slice] = []
        self.scanned = 0
        self.cold: set[int] = set()
        self.next_from_seq = max(cursor, stop - 1)

    def fill(self) -> Missing | Damaged | None:
        """Add rows part by part until the limit, the byte budget or the log is at its end."""
        topic, left = self._topic, self._query.limit
        for part in topic.parts(max(self._cursor + 1, topic.earliest)):
            if part.first_seq >= self._stop:
                break
            rows = self._live_rows(part, left)
            if not rows:
                continue
            source = rows_nowait(topic, part, self._sources)
            if isinstance(source, Missing | Damaged):
                return source
            self._sources.append(source)
            if part.segment.cold:
                self.cold.add(part.segment.uid)
            self.scanned += len(rows)
            left -= len(rows)
            undelivered = self._deliver(source, rows)
            if undelivered is not None:
                self.next_from_seq = part.first_seq + undelivered - 1
                return None
            if left == 0:
                self.next_from_seq = part.first_seq + rows[-1]
                return None
        return None

    def _live_rows(self, part: LogPart, limit: int) -> Sequence[int]:
        """Return up to `limit` live rows of a part after the cursor."""
        topic = self._topic
        first = max(self._cursor + 1, topic.earliest) - part.first_seq
        first, last = max(first, 0), min(part.end_seq, self._stop) - part.first_seq
        dead = topic.dead_of(part)
        if dead is None:
            return range(first, min(last, first + limit))
        rows = list(compress(range(first, last), dead.flags[first:last].translate(FLAGS_TO_LIVE)))
        return rows[:limit]

    def _deliver(self, source: RowSource, rows: Sequence[int]) -> int | None:
        """Deliver rows that pass the node filter, until the budget is full. Returns the first row that did not fit."""
        if self._nodes:
            rows = _foreign(source, rows, self._nodes)
            if not rows:
                return None
        first, last = rows[0], rows[-1]
        if isinstance(rows, range) and (whole := source.weight(first, last + 1)) <= self._room:
            self._room -= whole
            self._delivered += len(rows)
            self.slices.append(Slice(source, rows))
            return None
        weights = source.weights(first, last + 1)
        if isinstance(rows, range):
            fit = bisect_right(weights, weights[0] + self._room) - 1
            used = weights[min(fit, len(rows))] - weights[0]
        else:
            fit = used = 0
            for row in rows:
                size = weights[row - first + 1] - weights[row - first]
                if used + size > self._room:
                    break
                used += size
                fit += 1
        if not self._delivered and not fit:
            fit = 1
            used = weights[rows[0] - first + 1] - weights[rows[0] - first]
        self._room = max(0, self._room - used)  # the first record may exceed the budget
        self._delivered += min(fit, len(rows))
        if fit:
            self.slices.append(Slice(source, rows[:fit]))
        return rows[fit] if fit < len(rows) else None


def _foreign(source: RowSource, rows: Sequence[int], nodes: frozenset[bytes]) -> list[int]:
    """Return the rows that none of these nodes wrote."""
    shared = source.batch_node
    if shared is not None and shared in nodes and source.nodes(rows[0], rows[0] + 1) is None:
        return []
    own = source.nodes(rows[0], rows[-1] + 1)
    if own is None:
        return list(rows)
    first = rows[0]
    return [row for row in rows if own[row - first] not in nodes]
