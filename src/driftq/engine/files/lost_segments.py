"""Decides when files of segments that were given up may be removed, and which files found at start belong to one.

A hole of damage makes a segment given up (`Topic.is_damaged`), and only the hole is stored. The end of such a segment
is not known: it is at most where the next segment begins.
"""

from collections.abc import Iterable

from driftq.engine.state.catalog import Catalog
from driftq.engine.state.topic import Topic
from driftq.storage.segments.lost_files import LostFiles


def is_given_up(topic: Topic, first_seq: int, others: Iterable[int] = ()) -> bool:
    """Whether a hole of damage is where a segment was; `others` are first seqs of segments not in the topic."""
    firsts = [*(segment.first_seq for segment in topic.segments), *others]
    end = min((first for first in firsts if first > first_seq), default=topic.head + 1)
    return topic.is_damaged(first_seq, end)


def passed(lost: LostFiles, catalog: Catalog) -> list[tuple[int, int]]:
    """Return topic id and first seq of segments in `lost/` whose topic is gone, or that retention has passed."""
    found = []
    for topic_id, files in list(lost.segments.items()):
        topic = catalog.by_id.get(topic_id)
        found += [(topic_id, first) for first in list(files) if topic is None or not is_given_up(topic, first, files)]
    return found
