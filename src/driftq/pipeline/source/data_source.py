"""Format `driftq` for Spark: topics as tables and as streams.

Spark makes a source in a separate process, pickles it, and calls readers in two places. On the driver: `partitions`
and, for a stream, everything about offsets, in one process per query. In executors: `read`, on a copy made before the
query ran, so the partition must contain everything that `read` needs. The API key is in these pickles and nowhere else.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.offsets import Places
from driftq.pipeline.server_connection import Wire, address_of
from driftq.pipeline.sink.data_sink import BatchSink, SinkTarget, StreamSink
from driftq.pipeline.source import row_filters as selection
from driftq.pipeline.source.read_columns import (
    ALL,
    Projection,
    arrow_schema,
    check_nulls,
    check_schema,
    ddl,
    names_of,
)
from driftq.pipeline.source.read_options import (
    ReadOptions,
    api_key_of,
    check_names,
    check_stream,
    parse,
    patience_of,
    server_of,
)
from driftq.pipeline.source.split_plan import Split, splits_of
from driftq.pipeline.source.split_reader import Task, checked, partitions_of, read_partition, seqs_of_split
from driftq.pipeline.source.stream_reader import StreamReader
from driftq.pipeline.source.topic_listing import TopicListing
from driftq.pipeline.source.typed_data import TypedData, VariantData, arrow_type, parsed_ddl
from driftq.pipeline.spark.socket_directory import SERVER_VARIABLE
from driftq.pipeline.spark.worker_daemon import hush_this_process

_STARTS = ("startingSeq", "startingseq", "startingOffsets", "startingoffsets")


class DriftqSource(DataSource):
    """The format `driftq`. The environment of the JVM, or a subclass, provides the settings of the session."""

    session_server: ClassVar[str | None] = None
    session_key: ClassVar[str | None] = None
    in_place: ClassVar[bool] = True

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        hush_this_process()
        self._latest: Places | None = None
        if any(str(options.get(name, "")).lower() == "latest" for name in _STARTS):
            # Resolved to a number once: Spark asks for the first offset more than once.
            asked = self._asked()
            with self._wire(asked) as wire:
                wire.check()
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
        names = names_of(with_gaps=asked.with_gaps, with_v1=asked.with_v1, with_headers=asked.with_headers)
        if asked.schema is not None:
            return f"{ddl(name for name in names if name != 'data')}, {parsed_ddl(asked.schema)}"
        found = ddl(names)
        return found.replace("data string", "data variant") if asked.as_variant else found

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
        task = task._replace(tests=(*task.tests, *selection.from_time(asked.not_before)))
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
        check_nulls((field.name for field in schema.fields if not field.nullable), with_gaps=asked.with_gaps)
        return Task(
            self._wire(asked),
            _projection(asked, schema),
            selection.from_options(asked.tag, asked.tag_prefix, asked.node),
            asked.on_data_loss,
            self.in_place,
        )


def _projection(asked: ReadOptions, schema: StructType) -> Projection:
    """Return the projection to a schema. Raises PipelineError if neither a topic nor the options have a column."""
    typed = [field for field in schema.fields if asked.schema is not None and field.name not in ALL]
    variant = [field for field in schema.fields if asked.as_variant and field.name == "data"]
    others = [field for field in schema.fields if field not in typed and field not in variant]
    check_schema((field.name, field.dataType.simpleString()) for field in others)
    names = [field.name.lower() for field in schema.fields]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise PipelineError(f"option schema has column {twice!r}, which a record has too: use from_json for it")
    parsed = {field.name: arrow_type(field.dataType) for field in (*typed, *variant)}
    columns = TypedData(typed) if typed else VariantData() if variant else None
    return Projection(arrow_schema(((field.name, field.nullable) for field in schema.fields), parsed), columns)


class BatchReader(DataSourceReader):
    """Reads a range of each topic, as of the time of planning."""

    def __init__(self, asked: ReadOptions, task: Task) -> None:
        self._asked = asked
        self._task = task

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per split. Called on the driver."""
        self._task.wire.check()
        topics = TopicListing(self._task.wire, self._asked)
        found = [(manifest, topics.begin(manifest), topics.end(manifest)) for manifest in topics.wanted()]
        most = seqs_of_split(self._asked, sum(max(0, end - start) for _, start, end in found))
        splits: list[Split] = []
        for manifest, start, end in found:
            lost = topics.gaps(manifest, start, end) if start < end else []
            splits += splits_of(manifest, start, end, most, checked(self._asked.on_data_loss, manifest.topic, lost))
        self._task.wire.close()
        return partitions_of(splits, self._asked, most)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a partition. Called in an executor."""
        return read_partition(self._task, partition)
