"""Finds records by their seqs: which of them are live, and where their rows are. Used to hand records out one by one.

Nothing here waits. The cost depends on the number of seqs asked for and the rows skipped, not on the length of the log.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import compress

from driftq.engine.read.topic_page import Damaged, Missing, Slice, rows_nowait
from driftq.engine.state.record_log import LogPart
from driftq.engine.state.topic import Topic
from driftq.storage.blocks.block import RowSource
from driftq.storage.blocks.delete_flags import DELETED, FLAGS_TO_LIVE


def live_after(topic: Topic, cursor: int, limit: int) -> list[int]:
    """Return the seqs of the next live records after a cursor, at most `limit`."""
    found: list[int] = []
    first = max(cursor + 1, topic.earliest)
    for part in topic.parts(first):
        low = max(first - part.first_seq, 0)
        dead = topic.dead_of(part)
        if dead is None:
            found += range(part.first_seq + low, min(part.end_seq, part.first_seq + low + limit - len(found)))
        else:
            live = compress(range(part.first_seq + low, part.end_seq), dead.flags[low:].translate(FLAGS_TO_LIVE))
            found += list(live)[: limit - len(found)]
        if len(found) >= limit:
            break
    return found


def end_of_live(topic: Topic, cursor: int, records: int) -> int:
    """Return the seq of the last of the next `records` live records after a cursor; the head if there are fewer."""
    first, left = max(cursor + 1, topic.earliest), records
    for part in topic.parts(first):
        low = max(first - part.first_seq, 0)
        dead = topic.dead_of(part)
        live = part.count - low if dead is None else dead.flags[low:].translate(FLAGS_TO_LIVE).count(1)
        if live >= left:
            return live_after(topic, part.first_seq + low - 1, left)[-1]
        left -= live
    return topic.head


def live_until(topic: Topic, last: int) -> list[int]:
    """Return the seqs of all live records up to and including `last`."""
    found = live_after(topic, 0, max(0, last - topic.earliest + 1))
    while found and found[-1] > last:
        found.pop()
    return found


def live_of(topic: Topic, seqs: Sequence[int]) -> list[int]:
    """Return those of `seqs` (ascending) whose records are live."""
    found: list[int] = []
    for part, rows in parts_of(topic, seqs):
        dead = topic.dead_of(part)
        base = part.first_seq
        found += [base + row for row in rows if dead is None or dead.flags[row] != DELETED]
    return found


def rows_of(topic: Topic, seqs: Sequence[int], budget: int) -> list[Slice] | Missing | Damaged:
    """Return the rows of `seqs` (ascending) that are in the log, or the block that must be fetched first.

    The result ends before its payload would exceed `budget` bytes, but has at least one row.
    """
    slices: list[Slice] = []
    sources: list[RowSource] = []
    for part, rows in parts_of(topic, seqs):
        source = rows_nowait(topic, part, sources)
        if isinstance(source, Missing | Damaged):
            return source
        sources.append(source)
        fit, used = _fit(source, rows, budget)
        if fit < len(rows):
            if fit or not slices:
                slices.append(Slice(source, rows[: max(fit, 1)]))
            break
        budget -= used
        slices.append(Slice(source, rows))
    return slices


def _fit(source: RowSource, rows: Sequence[int], budget: int) -> tuple[int, int]:
    """Return how many of these rows fit into `budget` bytes, and how many bytes they have."""
    first = rows[0]
    weights = source.weights(first, rows[-1] + 1)
    if isinstance(rows, range):
        if weights[-1] - weights[0] <= budget:
            return len(rows), weights[-1] - weights[0]
        fit = bisect_right(weights, weights[0] + budget) - 1
        return fit, weights[fit] - weights[0]
    used = 0
    for fit, row in enumerate(rows):
        size = weights[row - first + 1] - weights[row - first]
        if used + size > budget:
            return fit, used
        used += size
    return len(rows), used


def parts_of(topic: Topic, seqs: Sequence[int]) -> Iterator[tuple[LogPart, Sequence[int]]]:
    """Yield the blocks that contain `seqs` (ascending, distinct) with their rows, without seqs that are in no block.

    The caller may remove rows between two results, so no position is kept from one to the next.
    """
    place, count = 0, len(seqs)
    while place < count:
        part = next(topic.parts(max(seqs[place], topic.earliest)), None)
        if part is None:
            return
        low, end = max(part.first_seq, topic.earliest), part.end_seq
        while place < count and seqs[place] < low:
            place += 1
        begin = place
        if place < count and seqs[place] < end:
            rest = min(count - place, end - seqs[place])
            if seqs[place + rest - 1] - seqs[place] == rest - 1:  # consecutive seqs
                place += rest
                yield part, range(seqs[begin] - part.first_seq, seqs[begin] - part.first_seq + rest)
                continue
        while place < count and seqs[place] < end:
            place += 1
        if place > begin:
            yield part, [seq - part.first_seq for seq in seqs[begin:place]]
