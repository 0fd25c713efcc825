"""Finds records by tag: exactly, or by prefix. The cost depends on the matches and one segment's tags, not on the log.

Sealed segments have an index sorted by tag (`storage/segments/tag_index`). It is written when they are sealed and kept
in memory up to a budget; a missing index is made again from the blocks. A block that is not sealed yet is skipped if a
search over its tag bytes finds nothing; appends do no work for this.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from driftq.engine.state.record_log import LogPart
from driftq.engine.state.segment import ACTIVE, Segment
from driftq.engine.state.topic import Topic
from driftq.storage.segments.cold_store import ColdStore
from driftq.storage.segments.hot_store import BlockDamagedError, SegmentStore
from driftq.storage.segments.tag_codes import Column
from driftq.storage.segments.tag_index import TagIndex, tag_rows


class Match(NamedTuple):
    """A tag, or a prefix of tags, to search for."""

    text: bytes
    is_prefix: bool

    def fits(self, tag: bytes | None) -> bool:
        """Whether a record with this tag matches."""
        if tag is None:
            return False
        return tag.startswith(self.text) if self.is_prefix else tag == self.text


class TagIndexes:
    """Keeps tag indexes of sealed segments in memory, up to a number of bytes."""

    def __init__(self, store: SegmentStore, cold: ColdStore | None, budget: int) -> None:
        self._store = store
        self._cold = cold
        self._budget = budget
        self._kept: OrderedDict[int, TagIndex] = OrderedDict()
        self._kept_bytes = 0

    def keep(self, segment: Segment, index: TagIndex) -> None:
        """Cache an index that was just made or read."""
        if segment.uid in self._kept:
            return
        self._kept[segment.uid] = index
        self._kept_bytes += index.nbytes
        while self._kept_bytes > self._budget and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= dropped.nbytes

    def forget(self, segment: Segment) -> None:
        """Drop the index of a segment that is gone."""
        dropped = self._kept.pop(segment.uid, None)
        if dropped is not None:
            self._kept_bytes -= dropped.nbytes

    def of(self, topic: Topic, segment: Segment) -> TagIndex:
        """Return the index of a sealed segment: from memory, from its file, or made from its blocks."""
        index = self._kept.get(segment.uid)
        if index is not None:
            self._kept.move_to_end(segment.uid)
            return index
        content = self._store.read_tags(topic.id, segment.first_seq)
        index = TagIndex.decode(content) if content is not None else None
        if index is None:
            index = self._rebuilt(topic, segment)
        self.keep(segment, index)
        return index

    def numbered(
        self, topic: Topic, segment: Segment, numbers: Mapping[bytes, int], *, wide: bool
    ) -> "list[Column] | None":
        """Return for each block of a sealed segment the value in `numbers` of each row's tag, without reading payloads.

        `wide`: numbers do not fit into a byte. Returns None if the blocks must be read instead: a row has another tag
        or none, or the tag index is missing or damaged. Raises OSError when the segment is unavailable.
        """
        if segment.cold:
            return self._numbered_cold(topic, segment, numbers, wide=wide)
        content = self._store.read_tags(topic.id, segment.first_seq)
        index = TagIndex.decode(content) if content is not None else None
        size = segment.end_seq - segment.first_seq
        found = None if index is None else index.numbered(size, numbers, wide=wide)
        blocks = segment.index
        if found is None or found[1] != sum(blocks.count(number) for number in range(len(blocks))):
            return None
        starts = [blocks.first_seq(number) - segment.first_seq for number in range(len(blocks))]
        return [found[0][start : start + blocks.count(number)] for number, start in enumerate(starts)]

    def _numbered_cold(
        self, topic: Topic, segment: Segment, numbers: Mapping[bytes, int], *, wide: bool
    ) -> "list[Column] | None":
        assert self._cold is not None
        try:
            codes = self._cold.read_tags(topic.id, segment.first_seq)
        except BlockDamagedError:
            return None  # the code that reads its blocks reports the damage
        columns = []
        for number in range(len(segment.index)):
            group, _ = segment.index.place(number)
            found = codes[group]
            column = None if found is None else found.numbered(segment.index.count(number), numbers, wide=wide)
            if column is None:
                return None
            columns.append(column)
        return columns

    def _rebuilt(self, topic: Topic, segment: Segment) -> TagIndex:
        sources = []
        for part in list(topic.parts(segment.first_seq)):
            if part.segment is not segment:
                break
            source = topic.source(part)
            if source is not None:
                sources.append(source)
        return TagIndex.build(tag_rows(sources, segment.first_seq))


def find_tagged(topic: Topic, indexes: TagIndexes, match: Match, bound: int) -> Iterator[tuple[LogPart, list[int]]]:
    """Yield the parts that contain matching rows below `bound`, with those rows. They may include gone rows."""
    for segment in list(topic.segments):
        yield from find_tagged_in(topic, segment, indexes, match, bound)


def find_tagged_in(
    topic: Topic, segment: Segment, indexes: TagIndexes, match: Match, bound: int
) -> Iterator[tuple[LogPart, list[int]]]:
    """Yield what `find_tagged` finds in one segment. Raises OSError when it is unavailable."""
    if segment.first_seq >= bound or (not segment.live and segment.state is not ACTIVE):
        return
    if segment.sealed:
        yield from _in_index(topic, segment, indexes.of(topic, segment), match, bound)
    else:
        for part in list(topic.parts(segment.first_seq)):
            if part.segment is not segment or part.first_seq >= bound:
                break
            yield from _in_part(topic, part, match, bound)


def _in_part(topic: Topic, part: LogPart, match: Match, bound: int) -> Iterator[tuple[LogPart, list[int]]]:
    source = topic.source(part)
    if source is None or match.text not in source.tag_bytes():
        return
    tags = source.tags(0, min(part.count, bound - part.first_seq)) or []
    rows = [row for row, tag in enumerate(tags) if match.fits(tag)]
    if rows:
        yield part, rows


def _in_index(
    topic: Topic, segment: Segment, index: TagIndex, match: Match, bound: int
) -> Iterator[tuple[LogPart, list[int]]]:
    found = index.prefix(match.text) if match.is_prefix else index.exact(match.text)
    seqs = sorted(segment.first_seq + row for row in found.rows)
    place = 0
    while place < len(seqs) and seqs[place] < bound:
        part = next(topic.parts(seqs[place]))
        rows = []
        while place < len(seqs) and seqs[place] < min(part.end_seq, bound):
            rows.append(seqs[place] - part.first_seq)
            place += 1
        if not found.certain:
            source = topic.source(part)
            tags = None if source is None else source.tags(0, part.count)
            rows = [row for row in rows if tags is not None and match.fits(tags[row])]
        if rows:
            yield part, rows
