"""From a time to a cursor (http-v0 §22.3): `$ts` never decreases over `$seq`, so binary search works.

It searches over segments, over the blocks of one segment, then over the rows of one block. Like `read_page` it never
waits: if the rows of that block are not in memory it returns `Missing`, and the caller asks again.
"""

from bisect import bisect_left

from driftq.engine.read.topic_page import Damaged, Missing, rows_nowait
from driftq.engine.state.record_log import LogPart
from driftq.engine.state.topic import Topic


def cursor_at(topic: Topic, ts: int) -> int | Missing | Damaged:
    """Return the cursor before the first record at or after `ts`, and not before the oldest retained record."""
    if topic.last_ts < ts or not topic.count:
        return topic.head
    part = _part_at(topic, ts)
    if part is None:
        return topic.head
    row = 0
    if part.first_ts < ts:
        source = rows_nowait(topic, part, [])
        if isinstance(source, Missing | Damaged):
            return source
        times = source.times(0, part.count)
        row = 0 if isinstance(times, int) else bisect_left(times, ts)
    return max(part.first_seq + row, topic.earliest) - 1


def _part_at(topic: Topic, ts: int) -> LogPart | None:
    """Return the first block whose last record is at or after `ts`, or None."""
    segments = topic.segments
    # Only the newest segment may have no closed block yet: its rows are in the open block.
    closed = len(segments) - (not len(segments[-1].index))
    place = bisect_left(segments, ts, 0, closed, key=lambda segment: segment.last_ts)
    if place < closed:
        index = segments[place].index
        number = bisect_left(range(len(index)), ts, key=index.last_ts)
        seq = index.first_seq(number)
    elif topic.open is not None and topic.open.last_ts >= ts:
        seq = topic.open.first_seq
    else:
        return None
    return next(topic.parts(seq), None)
