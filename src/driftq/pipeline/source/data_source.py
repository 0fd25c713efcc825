"""Format `driftq` for Spark: topics as tables and as streams.

Spark makes a source in a separate process, pickles it, and calls readers in two places. On the driver: `partitions`
and, for a stream, everything about offsets, in one process per query. In executors: `read`, on a copy made before the
query ran, so the partition must contain everything that `read` needs. The API key is in these pickles and nowhere else.
"""

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from driftq.pipeline import offsets
from driftq.pipeline.offsets import LateLosses, OffsetRange, Places, TopicOffset, same_server
from driftq.pipeline.server_connection import Wire, address_of
from driftq.pipeline.sink.data_sink import BatchSink, SinkTarget, StreamSink
from driftq.pipeline.source import row_filters as selection
from driftq.pipeline.source.read_columns import Projection, arrow_schema, check_nulls, check_schema, ddl, names_of
from driftq.pipeline.source.read_options import (
    ReadOptions,
    api_key_of,
    check_names,
    check_stream,
    parse,
    patience_of,
    server_of,
)
from driftq.pipeline.source.split_plan import SeqGap, Split, TopicFiles, present, reach, recreated, splits_of
from driftq.pipeline.source.split_reader import Task, deleted, loss, read_split
from driftq.pipeline.source.topic_listing import TopicListing
from driftq.pipeline.spark.socket_directory import SERVER_VARIABLE
from driftq.pipeline.spark.worker_daemon import hush_this_process
from driftq.pipeline.spark.worker_memory import settle

GONE_S = 10.0
"""Seconds that a stream waits for a deleted topic: most programs that create it again do so at once."""
_SAID = float("inf")
_ANY = (1 << 63) - 1
_log = logging.getLogger(__name__)


class DriftqSource(DataSource):
    """The format `driftq`. The environment of the JVM, or a subclass, provides the settings of the session."""

    session_server: ClassVar[str | None] = None
    session_key: ClassVar[str | None] = None
    in_place: ClassVar[bool] = True

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        hush_this_process()
        self._latest: Places | None = None
        if str(options.get("startingSeq", options.get("startingseq", ""))).lower() == "latest":
            # Resolved to a number once: Spark asks for the first offset more than once.
            asked = self._asked()
            with self._wire(asked) as wire:
                self._latest = TopicListing(wire, asked).initial()

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "driftq"

    @classmethod
    def _known_server(cls) -> str | None:
        return cls.session_server or os.environ.get(SERVER_VARIABLE) or None

    def _asked(self) -> ReadOptions:
        return parse(self.options, server=self._known_server())

    def _wire(self, asked: ReadOptions) -> Wire:
        return Wire(asked.server, api_key_of(self.options, self.session_key))

    def schema(self) -> str:
        """Return the DDL of all columns. A user selects columns with `.schema(…)`."""
        asked = self._asked()
        return ddl(names_of(with_gaps=asked.with_gaps, with_v1=asked.with_v1))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch read."""
        asked = self._asked()
        return BatchReader(asked, self._task(asked, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a streaming query."""
        asked = self._asked()
        check_stream(self.options)
        own = address_of(server_of({}, self._known_server()))
        there = address_of(asked.server)
        task = self._task(asked, schema)
        # A batch read ends at the head of now. A stream that starts in the future reads on until that time.
        task = task._replace(tests=(*task.tests, *selection.from_time(asked.start_ts)))
        return StreamReader(asked, task, self._latest, "" if there == own else there)

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        """Return the writer of a batch write."""
        return BatchSink(self._target(), schema, self.options, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:  # noqa: N802
        """Return the writer of a streaming query."""
        return StreamSink(self._target(), schema, overwrite=overwrite)

    def _target(self) -> SinkTarget:
        hush_this_process()
        check_names(self.options)
        server = server_of(self.options, self._known_server())
        key = api_key_of(self.options, self.session_key)
        return SinkTarget.of(self.options, Wire(server, key, patience_s=patience_of(self.options)))

    def _task(self, asked: ReadOptions, schema: StructType) -> Task:
        hush_this_process()
        check_schema((field.name, field.dataType.simpleString()) for field in schema.fields)
        check_nulls((field.name for field in schema.fields if not field.nullable), with_gaps=asked.with_gaps)
        return Task(
            self._wire(asked),
            Projection(arrow_schema((field.name, field.nullable) for field in schema.fields)),
            selection.from_options(asked.tag, asked.tag_prefix, asked.node),
            asked.on_data_loss,
            self.in_place,
        )


def _read(task: Task, partition: InputPartition) -> Iterator[Any]:
    """Yield the rows of a partition. Spark makes a partition without a value if a read has none."""
    hush_this_process()
    if partition.value is not None:
        yield from read_split(task, partition.value)
    settle()


def _checked(asked: ReadOptions, topic: str, gaps: list[SeqGap]) -> list[SeqGap]:
    """Return the gaps that become rows. Raises DataLossError if losses are not allowed."""
    if gaps and asked.on_data_loss == "fail":
        raise loss(topic, gaps)
    return gaps if asked.on_data_loss == "rows" else []


class BatchReader(DataSourceReader):
    """Reads a range of each topic, as of the time of planning."""

    def __init__(self, asked: ReadOptions, task: Task) -> None:
        self._asked = asked
        self._task = task

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per split. Called on the driver."""
        topics = TopicListing(self._task.wire, self._asked)
        found = []
        for name in topics.names():
            manifest = topics.get(name)
            start, end = topics.begin(manifest), topics.end(manifest)
            gaps = _checked(self._asked, name, topics.gaps(manifest, start, end)) if start < end else []
            found += splits_of(manifest, start, end, self._asked.split_records, gaps)
        self._task.wire.close()
        return [InputPartition(split) for split in found]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a partition. Called in an executor."""
        return _read(self._task, partition)


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
        self._gone: dict[str, float] = {}
        """Time (monotonic, s) since when a topic is missing; infinity after its warning was logged."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offset where the query starts. Every call returns the same."""
        if self._initial is None:
            self._initial = self._topics.initial()
        return self._encoded(self._initial)

    def _encoded(self, places: Places) -> dict[str, Any]:
        return offsets.encode({name: place._replace(server=self._elsewhere) for name, place in places.items()})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of `maxRecordsPerTrigger`; without it, no limit, or none on rows if bytes are limited."""
        most = self._asked.max_records or (_ANY if self._asked.max_bytes else None)
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query at the current heads of the topics."""
        self._target = self._heads()

    def _heads(self) -> Places:
        found = [manifest for name in self._topics.names() if (manifest := self._topics.find(name)) is not None]
        return {manifest.topic: TopicOffset(manifest.epoch, manifest.head, began=0) for manifest in found}

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the heads of the topics, for the lag in Spark's progress."""
        return self._encoded(self._heads())

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch, or `start` if there is nothing new."""
        places = {name: place._replace(server="") for name, place in offsets.decode(start).items()}
        # Topics that are no longer selected stay at their offset; deleted ones are reported as missing.
        meant = {*self._topics.names(), *filter(self._topics.fits, places)}
        known = {name: self._topics.find(name) for name in meant}
        begins: Places = {}
        backlog: dict[str, int] = {}
        for name, manifest in known.items():
            place = places.get(name)
            if manifest is None:
                self._miss(name, place)
                continue
            self._gone.pop(name, None)
            begins[name] = self._begin(manifest, place)
            backlog[name] = present(manifest, begins[name].seq, self._head(manifest))
        most = None
        if isinstance(limit, ReadMaxRows):
            sizes = [
                manifest.record_bytes for name, manifest in known.items() if manifest is not None and backlog[name]
            ]
            most = offsets.within(limit.max_rows, self._asked.max_bytes, sizes)
        shares = offsets.share({name: size for name, size in backlog.items() if size}, most)
        ends = dict(places)
        for name, begin in begins.items():
            manifest = known[name]
            assert manifest is not None
            head = max(begin.seq, self._head(manifest))
            if head > begin.seq or places.get(name) != begin:
                # Lost seqs do not count against the limit: a batch includes all of them.
                end = self._end(manifest, begin, reach(manifest, begin.seq, head, shares.get(name, 0)))
                ends[name] = self._late.carry(name, places.get(name), end)
        return self._encoded(ends)

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
        _checked(self._asked, manifest.topic, [recreated(place)])
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
        return begin._replace(seq=end, lost=begin.lost + skipped, server_id=manifest.server_id)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Return one partition per split. Called on the driver.

        Equal offsets give equal rows, as long as the topic has them.
        """
        found: list[Split] = []
        begins, ends = (
            {name: place._replace(server="") for name, place in offsets.decode(offset).items()}
            for offset in (start, end)
        )
        for part in offsets.ranges(begins, ends):
            splits, gone = self._splits(part)
            if self._asked.on_data_loss == "skip":
                self._late.find(part.topic, begins.get(part.topic), ends[part.topic], gone)
            found += splits
        return [InputPartition(split) for split in found]

    def _splits(self, part: OffsetRange) -> tuple[list[Split], int]:
        """Return the splits of a range, and how many of its seqs are lost."""
        manifest = self._topics.find(part.topic)
        missed = [] if part.missed is None else [recreated(part.missed)]
        if (
            manifest is None
            or manifest.epoch != part.epoch
            or manifest.head < part.end
            or not same_server(manifest.server_id, part.server_id)
        ):
            lost = [*missed, SeqGap(part.start + 1, part.end, "recreated")]
            gaps = _checked(self._asked, part.topic, lost)
            alone = [Split(part.topic, part.epoch, 1, "", "", None, (), tuple(gaps))] if gaps else []
            return alone, offsets.lost_in((gap.first, gap.last) for gap in lost)
        lost = [*missed, *self._topics.gaps(manifest, part.start, part.end)]
        gaps = _checked(self._asked, part.topic, lost)
        splits = splits_of(manifest, part.start, part.end, self._asked.split_records, gaps)
        return splits, offsets.lost_in((gap.first, gap.last) for gap in lost)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a partition. Called in an executor."""
        return _read(self._task, partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: the listener reports the position, since Spark does not call this for the last batch."""

    def stop(self) -> None:
        """Close the connection to the server."""
        self._task.wire.close()
