"""The sink: writes a DataFrame or a stream into topics, each micro-batch exactly once (spark.md §3).

Spark delivers a batch at least once, in partitions that may differ each time. It identifies the batch by the id of the
query and the number of the batch, which are the same after any restart from the checkpoint. Tasks stage their rows,
`commit` on the driver publishes the parts that the handles name, and the server remembers the last published batch of
each query: `pipeline/sink/staged_batch` has the protocol. Spark may call `commit` twice, and `abort` after a commit
that succeeded.

A batch write has its own writer name, drawn at random when it is planned, so it is published once even if its tasks run
several times. Options `writer` and `batch` set a durable identity: the same pair is published once, and a batch below
the writer's last one is refused. So `foreachBatch` and scripts that are run again also write exactly once. Inside a
streaming query, the id of the query is a part of the writer's name, because a new checkpoint counts from 0 again.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from driftq.model.names import is_broker_topic
from driftq.pipeline.errors import PipelineError
from driftq.pipeline.server_connection import Wire
from driftq.pipeline.sink.arrow_chunks import check_columns
from driftq.pipeline.sink.stage_client import ServerStage
from driftq.pipeline.sink.staged_batch import (
    PartWriter,
    StagedRows,
    TaskAddress,
    abandon,
    check_writer,
    commit,
    writer_in_query,
)
from driftq.pipeline.spark.worker_daemon import hush_this_process
from driftq.pipeline.spark.worker_memory import settle

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"
_ATTEMPT_BYTES = 6
_FLAGS = {"true": True, "yes": True, "false": False, "no": False}


class SinkTarget(NamedTuple):
    """Destination of the rows. Sent to the executors together with the writer."""

    wire: Wire
    topic: str | None
    error_topic: str | None
    create: bool

    @staticmethod
    def of(options: Mapping[str, str], wire: Wire) -> "SinkTarget":
        """Return the target for the options of a write, whose names are already checked. Raises PipelineError."""
        topic, error_topic = options.get("topic"), options.get("errorTopic")
        for name in (topic, error_topic):
            if name is not None and is_broker_topic(name):
                raise PipelineError(f"topic {name!r} belongs to the broker API: produce to it through /v1")
        if "topics" in options or "topicPattern" in options:
            raise PipelineError("a write needs option 'topic', or a column 'topic' that names the topic of each row")
        return SinkTarget(wire, topic, error_topic, _flag(options, "createTopic"))

    def connected(self) -> ServerStage:
        """Return the stage of the server to write to. Spark's tasks and commits begin with this."""
        hush_this_process()
        return ServerStage(self.wire, create=self.create)

    def staged(self, known_as: Sequence[str], writer: str, batch: int, rows: Iterator[pa.RecordBatch]) -> "Handle":
        """Stage the rows of the task that runs in this process."""
        task = TaskContext.get()
        assert task is not None, "write runs in a task"
        attempt = int.from_bytes(os.urandom(_ATTEMPT_BYTES))
        address = TaskAddress(check_writer(writer), batch, task.partitionId(), attempt)
        with self.connected() as server:
            part = PartWriter(server, address, topic=self.topic, error_topic=self.error_topic, known_as=known_as)
            handle = Handle(part.write(rows))
        settle()
        return handle


@dataclass
class Handle(WriterCommitMessage):
    """Message of a task to the driver: the rows that it has staged."""

    staged: StagedRows


class StreamSink(DataSourceStreamArrowWriter):
    """The sink of a streaming query. `write` runs in tasks, the rest on the driver, each in its own instance."""

    def __init__(self, target: SinkTarget, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise PipelineError("rows can only be appended to a topic: use outputMode('append')")
        check_columns(_columns(schema), routed=target.topic is None)
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Handle:
        """Stage the rows of one partition."""
        task = TaskContext.get()
        assert task is not None, "write runs in a task"
        query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
        assert query is not None, "Spark sets the query id of a task"
        assert batch is not None, "Spark sets the batch number of a task"
        return self._target.staged([query], query, int(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Publish the batch, unless it is published already."""
        with self._target.connected() as server:
            commit(server, _handles(messages), batchId, error_topic=self._target.error_topic)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Remove staged rows. Published rows stay: Spark may call this after a commit that succeeded."""
        with self._target.connected() as server:
            abandon(server, _handles(messages))


class BatchSink(DataSourceArrowWriter):
    """The sink of one `df.write`. Spark copies the instance to tasks and to the driver."""

    def __init__(self, target: SinkTarget, schema: StructType, options: Mapping[str, str], *, overwrite: bool) -> None:
        if overwrite:
            raise PipelineError("rows can only be appended to a topic: use mode('append')")
        check_columns(_columns(schema), routed=target.topic is None)
        self._target = target
        self._writer, self._batch = _identity(options)
        self._drawn = f"batch:{os.urandom(16).hex()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Handle:
        """Stage the rows of one partition."""
        if self._writer is None:
            return self._target.staged([], self._drawn, self._batch, iterator)
        task = TaskContext.get()
        assert task is not None, "write runs in a task"
        name = writer_in_query(self._writer, task.getLocalProperty(_QUERY))
        # 0.1.0 wrote under the plain name inside a query, too.
        return self._target.staged([*dict.fromkeys((name, self._writer))], name, self._batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish all staged rows of the write."""
        handles = _handles(messages)
        # In a query Spark repeats a batch, and rows that depend on the time or on another table may be other ones.
        same = not any(handle.address.writer != self._writer for handle in handles)
        with self._target.connected() as server:
            commit(server, handles, self._batch, error_topic=self._target.error_topic, same_rows=same)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the staged rows of the write."""
        with self._target.connected() as server:
            abandon(server, _handles(messages))


def _identity(options: Mapping[str, str]) -> tuple[str | None, int]:
    """Return writer and batch of a write; the writer is None if the options name none."""
    writer, batch = options.get("writer"), options.get("batch")
    if writer is None:
        if batch is not None:
            raise PipelineError("option batch numbers the batches of a writer: set option writer, too")
        return None, 0
    if batch is None:
        raise PipelineError("option writer needs option batch, a number that is higher with each write: set it, too")
    if not (batch.isascii() and batch.isdecimal()) or int(batch) >= 1 << 64:
        raise PipelineError(
            f"option batch is {batch!r} and must be an integer from 0 to 2^64-1, higher with each write"
        )
    return check_writer(writer), int(batch)


def _flag(options: Mapping[str, str], name: str) -> bool:
    """Return a boolean option, by default true. Raises PipelineError for a value that is neither true nor false."""
    text = options.get(name, "true")
    if text.lower() not in _FLAGS:
        raise PipelineError(f"option {name} is {text!r} and must be true or false")
    return _FLAGS[text.lower()]


def _columns(schema: StructType) -> dict[str, str]:
    return {column.name: column.dataType.simpleString() for column in schema.fields}


def _handles(messages: list[WriterCommitMessage | None]) -> list[StagedRows]:
    return [message.staged for message in messages if isinstance(message, Handle)]
