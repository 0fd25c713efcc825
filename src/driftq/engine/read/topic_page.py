"""The read path: one page of a topic after a cursor, with the exact window and byte budget of http-v0 §8.

`read_page` never waits. Where a block is not in memory it says which (`Missing`); where one turns out to be damaged it
says so (`Damaged`), and the engine makes a hole of it before anybody gets an answer. The caller then asks again. Where
one is unavailable the reader gets a `SegmentUnavailableError`, and nothing has changed.

A page is places, not records: ranges of rows of blocks. Rendering splices the bytes of those rows.
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
from driftq.storage.blocks.frame import DELETED
from driftq.storage.segments.hot_store import BlockDamagedError

_LIVE = bytes(0 if value == DELETED else 1 for value in range(256))


class Slice(NamedTuple):
    """Some rows of one block, in order."""

    source: RowSource
    rows: Sequence[int]


class Page(NamedTuple):
    """One answer to a reader."""

    slices: list[Slice]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: Tombstone | None
    scanned: int
    cold_segments: int = 0
    """Segments of the cold tier that were read for it."""
    epoch: int = 0
    """Which life of its name the topic is in."""

    @property
    def caught_up(self) -> bool:
        """Is there nothing more for now?"""
        return self.next_from_seq == self.head_seq

    @property
    def lag(self) -> int:
        """How many seqs are left."""
        return self.head_seq - self.next_from_seq

    @property
    def size(self) -> int:
        """Records on the page."""
        return sum(len(part.rows) for part in self.slices)


class Missing(NamedTuple):
    """A block that has to be fetched first. Whoever fetches it holds on to the others of the page meanwhile."""

    part: LogPart
    others: list[RowSource]


class Damaged(NamedTuple):
    """A block that is no good: a hole, once that is logged."""

    part: LogPart
    why: str


class PageQuery(NamedTuple):
    """What a reader asks for; sizes are clamped by `clamped`."""

    from_seq: int = 0
    limit: int = PAGE_RECORDS
    nodes: frozenset[bytes] = frozenset()
    max_batch_bytes: int = PAGE_BYTES
    up_to: int | None = None
    """Read as if the log ended here; a cursor behind it stays where it is."""
    bulk: bool = False
    """May the page be as large as one of Arrow?"""
    epoch: int | None = None
    """Which life of the topic's name the cursor is from; None where the reader does not know."""

    def clamped(self, limit_max: int) -> "PageQuery":
        """Zero means the default, too much means the most."""
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
    """The page after a cursor. Retention has been applied by the caller."""
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
    """Return the rows of a part, or why there are none without waiting. Raises SegmentUnavailableError."""
    try:
        source = topic.source_nowait(part)
    except BlockDamagedError as error:
        return Damaged(part, str(error))
    except OSError as error:
        raise unavailable(error, cold=part.segment.cold) from error
    return Missing(part, others) if source is None else source


def _tombstone(topic: Topic, query: PageQuery) -> tuple[Tombstone | None, int]:
    """The notice a cursor is due for what lies below the floor, and where reading goes on.

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
    """Is any record of [first, end) live?"""
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
    """Collects the next live records after a cursor, up to `limit`, and delivers what passes filter and budget."""

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
        """Go from part to part until the window, the budget or the log is at its end."""
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
        """Up to `limit` live rows of a part behind the cursor."""
        topic = self._topic
        first = max(self._cursor + 1, topic.earliest) - part.first_seq
        first, last = max(first, 0), min(part.end_seq, self._stop) - part.first_seq
        dead = topic.dead_of(part)
        if dead is None:
            return range(first, min(last, first + limit))
        rows = list(compress(range(first, last), dead.flags[first:last].translate(_LIVE)))
        return rows[:limit]

    def _deliver(self, source: RowSource, rows: Sequence[int]) -> int | None:
        """Deliver rows that pass the node filter, until the budget is full. Returns the first row left out by it."""
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
        self._room = max(0, self._room - used)  # the first record may be over it
        self._delivered += min(fit, len(rows))
        if fit:
            self.slices.append(Slice(source, rows[:fit]))
        return rows[fit] if fit < len(rows) else None


def _foreign(source: RowSource, rows: Sequence[int], nodes: frozenset[bytes]) -> list[int]:
    """The rows that none of these nodes wrote."""
    shared = source.batch_node
    if shared is not None and shared in nodes and source.nodes(rows[0], rows[0] + 1) is None:
        return []
    own = source.nodes(rows[0], rows[-1] + 1)
    if own is None:
        return list(rows)
    first = rows[0]
    return [row for row in rows if own[row - first] not in nodes]
