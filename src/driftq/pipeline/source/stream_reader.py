"""Reads topics as they grow, for a streaming query: where each batch ends, and which splits it has.

Spark calls one instance, in one process per query. A trigger asks for the end of the next batch, for the heads and for
the splits of the batch; all three are answered from one request to the server. If a batch is limited in the middle of
deleted records, a second one asks where its live records end.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from driftq.pipeline import offsets
from driftq.pipeline.offsets import LateLosses, OffsetRange, Places, TopicOffset, same_server
from driftq.pipeline.source.read_options import ReadOptions
from driftq.pipeline.source.split_plan import (
    SeqGap,
    Split,
    TopicFiles,
    most_live,
    present,
    reach,
    recreated,
    splits_of,
)
from driftq.pipeline.source.split_reader import (
    Task,
    checked,
    deleted,
    partitions_of,
    read_partition,
    seqs_of_split,
)
from driftq.pipeline.source.topic_listing import TopicListing

GONE_S = 10.0
"""Seconds that a stream waits for a deleted topic: most programs that create it again do so at once."""
_SAID = float("inf")
_ANY = (1 << 63) - 1
_log = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow, for a streaming query."""

    def __init__(self, asked: ReadOptions, task: Task, latest: Places | None, elsewhere: str = "") -> None:
        self._asked = asked
        self._task = task
        self._topics = TopicListing(task.wire, asked)
        self._elsewhere = elsewhere
        """URL of the server if it is not the session's server, else empty."""
        self._initial = latest
        self._target: Places | None = None
        self._late = LateLosses()
        self._checked = False
        self._seen: dict[str, TopicFiles] = {}
        """Manifests of the last trigger, for the plan of its batch."""
        self._heads_seen: Places | None = None
        """Heads of the last trigger, for its report."""
        self._began_s: float | None = None
        """Time (monotonic, s) of the last batch; None before the first."""
        self._gone: dict[str, float] = {}
        """Time (monotonic, s) since when a topic is missing; infinity after its warning was logged."""

    def _check(self) -> None:
        """Check the server once: a query that runs waits for it, but a query that begins may have a wrong address."""
        if not self._checked:
            self._task.wire.check()
            self._checked = True

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offset where the query starts. Every call returns the same."""
        self._check()
        if self._initial is None:
            self._initial = self._topics.initial()
        return self._encoded(self._initial)

    def _encoded(self, places: Places) -> dict[str, Any]:
        server, cursor = self._elsewhere, self._asked.cursor
        return offsets.encode({name: place._replace(server=server, cursor=cursor) for name, place in places.items()})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of `maxRecordsPerTrigger`. Without it the limit is not on rows, but there may be others."""
        return ReadMaxRows(self._asked.max_records or _ANY)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query at the current heads of the topics."""
        self._check()
        self._target = _heads(self._topics.all())

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the heads of the topics, for the lag in Spark's progress."""
        self._check()
        heads, self._heads_seen = self._heads_seen, None
        return self._encoded(_heads(self._topics.all()) if heads is None else heads)

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch, or `start` if there is nothing new."""
        self._check()
        places = _decoded(start)
        known = self._seen = self._topics.all()
        self._heads_seen = _heads(known)
        # Topics that are no longer selected stay at their offset; deleted ones are reported as missing.
        for name, place in places.items():
            if name not in known and self._topics.fits(name):
                self._miss(name, place)
        begins: Places = {}
        for name, manifest in known.items():
            self._gone.pop(name, None)
            begins[name] = self._begin(manifest, places.get(name))
        heads = {name: max(begin.seq, self._head(known[name])) for name, begin in begins.items()}
        backlog = {name: present(known[name], begin.seq, heads[name]) for name, begin in begins.items()}
        if self._delays(sum(backlog.values())):
            return dict(start)
        stops = self._stops(begins, heads, backlog, limit) if isinstance(limit, ReadMaxRows) else heads
        ends = dict(places)
        for name, begin in begins.items():
            if heads[name] > begin.seq or places.get(name) != begin:
                end = self._end(known[name], begin, stops[name])
                ends[name] = self._late.carry(name, places.get(name), end)
        return dict(start) if ends == places else self._encoded(ends)

    def _delays(self, waiting: int) -> bool:
        """Whether the batch waits for more seqs (`minOffsetsPerTrigger`), but not longer than `maxTriggerDelay`."""
        least, now = self._asked.min_offsets, time.monotonic()
        if least is None or self._target is not None:
            return False
        late = self._began_s is None or now - self._began_s >= self._asked.trigger_delay_s
        if waiting < least and not late:
            return True
        self._began_s = now
        return False

    def _stops(
        self, begins: Places, heads: Mapping[str, int], backlog: Mapping[str, int], limit: ReadMaxRows
    ) -> dict[str, int]:
        """Return the last seq of each topic in a limited batch.

        Lost seqs do not count against a limit: a batch includes all of them.
        """
        known = self._seen
        live = {name: most_live(known[name], begin.seq, heads[name]) for name, begin in begins.items()}
        sizes = [known[name].record_bytes for name, count in live.items() if count]
        most = offsets.within(limit.max_rows, self._asked.max_bytes, sizes)
        records = offsets.share({name: count for name, count in live.items() if count}, most)
        seqs = offsets.share({name: count for name, count in backlog.items() if count}, self._asked.max_offsets)
        cut = {name for name, count in records.items() if count < live[name]}
        # Where no record was deleted, their number gives the seq. Elsewhere the server knows it.
        sparse = {name: (begins[name].seq, records[name]) for name in cut if live[name] < backlog[name]}
        found = self._topics.ends_of_live(sparse) if sparse else {}
        stops = {}
        for name, begin in begins.items():
            allowed = seqs.get(name, 0)
            if name in cut and name not in sparse:
                allowed = min(allowed, records[name])
            stop = reach(known[name], begin.seq, heads[name], allowed)
            stops[name] = max(begin.seq, min(stop, found.get(name, stop)))
        return stops

    def _miss(self, topic: str, place: TopicOffset | None) -> None:
        """Handle a missing topic. Raises DataLossError if a topic that was read is not created again within 10 s."""
        if place is None:
            return
        now = time.monotonic()
        since = self._gone.setdefault(topic, now)
        if since == _SAID or (self._target is None and now - since < GONE_S):
            return
        error = deleted(topic, place)
        if self._asked.on_data_loss == "fail":
            raise error
        self._gone[topic] = _SAID
        _log.warning(
            "%s",
            error.message.partition(":")[0] + ": the query continues without it, and reads it if it is created again",
        )

    def _head(self, manifest: TopicFiles) -> int:
        if self._target is None:
            return manifest.head
        target = self._target.get(manifest.topic)
        return min(manifest.head, target.seq) if target is not None and target.epoch == manifest.epoch else 0

    def _begin(self, manifest: TopicFiles, place: TopicOffset | None) -> TopicOffset:
        """Return where the next batch starts in the current incarnation of the topic."""
        if place is None:
            begin = self._topics.begin_later(manifest)
            return TopicOffset(manifest.epoch, begin, began=begin, server_id=manifest.server_id)
        now = TopicOffset(manifest.epoch, manifest.head, began=0, server_id=manifest.server_id)
        if place.lives_on_in(now) and (place.seq <= manifest.head or self._waits(manifest.topic)):
            return place
        checked(self._asked.on_data_loss, manifest.topic, [recreated(place)])
        return TopicOffset(manifest.epoch, 0, began=0, lost=place.lost + 1, server_id=manifest.server_id)

    def _waits(self, topic: str) -> bool:
        """Whether the query waits for a seq above the head. If unknown, true if the options ask for a certain seq."""
        if self._topics.ahead is None:
            return not isinstance(self._asked.start, str)
        return topic in self._topics.ahead

    def _end(self, manifest: TopicFiles, begin: TopicOffset, end: int) -> TopicOffset:
        """Return the end of a batch, with the number of seqs that are skipped before it."""
        skipped = 0
        if self._asked.on_data_loss == "skip":
            gaps = self._topics.gaps(manifest, begin.seq, end)
            skipped = offsets.lost_in((gap.first, gap.last) for gap in gaps)
        began = begin.began if begin.seq == begin.began else None
        return begin._replace(seq=end, began=began, lost=begin.lost + skipped, server_id=manifest.server_id)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Return one partition per split. Called on the driver.

        Equal offsets give equal rows, as long as the topic has them.
        """
        self._check()
        begins, ends = _decoded(start), _decoded(end)
        parts = offsets.ranges(begins, ends)
        manifests = self._manifests(parts)
        most = seqs_of_split(self._asked, sum(part.end - part.start for part in parts))
        found: list[Split] = []
        for part in parts:
            splits, gone = self._splits(part, manifests.get(part.topic), most)
            if self._asked.on_data_loss == "skip":
                self._late.find(part.topic, begins.get(part.topic), ends[part.topic], gone)
            found += splits
        return partitions_of(found, self._asked, most)

    def _manifests(self, parts: Sequence[OffsetRange]) -> Mapping[str, TopicFiles]:
        """Return the manifests of the topics of a batch: those of its trigger, or current ones.

        Where losses are skipped they are current, because a loss that a task finds is not counted.
        """
        seen, self._seen = self._seen, {}
        if self._asked.on_data_loss != "skip" and all(
            (manifest := seen.get(part.topic)) is not None and _holds(manifest, part) for part in parts
        ):
            return seen
        return self._topics.of(part.topic for part in parts)

    def _splits(self, part: OffsetRange, manifest: TopicFiles | None, most: int) -> tuple[list[Split], int]:
        """Return the splits of a range, and how many of its seqs are lost."""
        missed = [] if part.missed is None else [recreated(part.missed)]
        if manifest is None or not _holds(manifest, part):
            lost = [*missed, SeqGap(part.start + 1, part.end, "recreated")]
            gaps = checked(self._asked.on_data_loss, part.topic, lost)
            alone = [Split(part.topic, part.epoch, 1, "", "", None, (), tuple(gaps))] if gaps else []
            return alone, offsets.lost_in((gap.first, gap.last) for gap in lost)
        lost = [*missed, *self._topics.gaps(manifest, part.start, part.end)]
        gaps = checked(self._asked.on_data_loss, part.topic, lost)
        splits = splits_of(manifest, part.start, part.end, most, gaps)
        return splits, offsets.lost_in((gap.first, gap.last) for gap in lost)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a partition. Called in an executor."""
        return read_partition(self._task, partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: the listener reports the position, since Spark does not call this for the last batch."""

    def stop(self) -> None:
        """Close the connection to the server."""
        self._task.wire.close()


def _heads(manifests: Mapping[str, TopicFiles]) -> Places:
    return {name: TopicOffset(manifest.epoch, manifest.head, began=None) for name, manifest in manifests.items()}


def _decoded(offset: Mapping[str, Any]) -> Places:
    """Return the places of an offset without the options of the query that are stored with them."""
    return {name: place._replace(server="", cursor="") for name, place in offsets.decode(offset).items()}


def _holds(manifest: TopicFiles, part: OffsetRange) -> bool:
    """Whether the topic is still the one that the range was planned for, and reaches to its end."""
    same = manifest.epoch == part.epoch and same_server(manifest.server_id, part.server_id)
    return same and manifest.head >= part.end
