"""Reads the rows of a split in an executor: from files if this process sees them, else from the server.

Pieces are read in order. If a file fails, reading continues on the server after the last row of the file. If the server
reports a loss during the read, it happened after planning, and is handled as `onDataLoss` asks. Skipped losses are
logged, because a task of a reader cannot add to the progress of its query.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from driftq.pipeline.errors import DataLossError
from driftq.pipeline.offsets import TopicOffset
from driftq.pipeline.server_connection import AnswerError, Wire
from driftq.pipeline.source.read_columns import Projection, base_schema
from driftq.pipeline.source.read_options import ReadOptions
from driftq.pipeline.source.row_filters import Condition, apply, columns_of
from driftq.pipeline.source.split_plan import Piece, SeqGap, Split, shared_tasks
from driftq.pipeline.spark.worker_daemon import hush_this_process
from driftq.pipeline.spark.worker_memory import settle

_SHARED_PART = 4
"""A task that several splits share has at most this part of the seqs of a task with one split."""
_GATHERED_ROWS = 10_000
_READS = 100
"""Topics of one request (http-v0 §22.1)."""
_SMALL_SEQS = 1000
PAGE_BYTES = 16 << 20
PAGE_RECORDS = 200_000
_log = logging.getLogger(__name__)


class Task(NamedTuple):
    """The settings that all splits of a read share."""

    wire: Wire
    projection: Projection
    tests: tuple[Condition, ...]
    on_data_loss: str
    in_place: bool = True
    """Whether files may be read directly. Tests turn it off to use the server."""


def read_partition(task: Task, partition: InputPartition) -> Iterator[Any]:
    """Yield the rows of a partition. Spark makes a partition without a value if a read has none."""
    hush_this_process()
    splits: Sequence[Split] = partition.value or ()
    with task.wire:
        yield from read_split(task, splits[0]) if len(splits) == 1 else _gathered(_of_many(task, splits))
    settle()


class _FirstPage(NamedTuple):
    """A page of a topic, as the server sent it."""

    facts: dict[str, str]
    batches: list[Any]


def _of_many(task: Task, splits: Sequence[Split]) -> Iterator[Any]:
    """Yield the rows of many splits. Small ones that are in no file are read with one request for several of them."""
    names = task.projection.base_columns(columns_of(task.tests))
    for at in range(0, len(splits), _READS):
        group = splits[at : at + _READS]
        pages = _first_pages(task, [split for split in group if _is_small(split)], names)
        for split in group:
            yield from read_split(task, split, pages.get(split.topic))


def _is_small(split: Split) -> bool:
    return len(split.pieces) == 1 and split.pieces[0].segment is None and split.size <= _SMALL_SEQS


def _first_pages(task: Task, splits: Sequence[Split], names: list[str]) -> dict[str, _FirstPage]:
    """Return the first pages of splits by topic. What is missing here is read topic by topic."""
    if len(splits) < 2:
        return {}
    reads = [{"topic": each.topic, "from_seq": each.pieces[0].first - 1, "limit": each.size} for each in splits]
    question = {"reads": reads, "max_batch_bytes": PAGE_BYTES}
    question |= {"include_tags": "tag" in names, "include_meta": "meta" in names}
    try:
        source = pa.BufferReader(task.wire.arrow("/v0/reads", question))
    except AnswerError:
        return {}  # one of the topics may be gone; reading each by itself finds out which
    found = {}
    for split in splits:
        if source.tell() == source.size():
            break
        found[split.topic] = _page(pa.ipc.open_stream(source))
    return found


def _page(stream: Any) -> _FirstPage:
    return _FirstPage({key.decode(): value.decode() for key, value in stream.schema.metadata.items()}, list(stream))


def _gathered(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the rows of many small batches in larger ones: each batch costs Spark about as much as 1000 rows."""
    waiting: list[Any] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= _GATHERED_ROWS:
            yield pa.concat_batches(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.concat_batches(waiting)


def partitions_of(splits: Sequence[Split], asked: ReadOptions, most: int) -> list[InputPartition]:
    """Return the partitions of a read with splits of at most `most` seqs; small splits share one."""
    return [InputPartition(task) for task in shared_tasks(splits, min(most, asked.split_records // _SHARED_PART))]


def seqs_of_split(asked: ReadOptions, seqs: int) -> int:
    """Return how many seqs a split of a read of `seqs` has at most."""
    if asked.min_partitions is None:
        return asked.split_records
    return max(1, min(asked.split_records, seqs // asked.min_partitions))


def checked(on_data_loss: str, topic: str, gaps: list[SeqGap]) -> list[SeqGap]:
    """Return the gaps that become rows. Raises DataLossError if losses are not allowed."""
    if gaps and on_data_loss == "fail":
        raise loss(topic, gaps)
    return gaps if on_data_loss == "rows" else []


def read_split(task: Task, split: Split, page: _FirstPage | None = None) -> Iterator[Any]:
    """Yield the rows of a split in the form that Spark expects. `page` is its first page, if it is known."""
    projection, names = task.projection, task.projection.base_columns(columns_of(task.tests))
    if split.gaps and task.on_data_loss == "rows":
        yield projection.gaps(split.topic, split.gaps)
    for piece in split.pieces:
        pieces = _piece(task, split, piece, names)
        if page is not None:
            pieces = _from_server(task, split, piece.first, piece.last, names, page)
        for found in pieces:
            if isinstance(found, SeqGap):
                if task.on_data_loss == "rows":
                    yield projection.gaps(split.topic, [found])
                continue
            rows = apply(task.tests, found)
            if rows.num_rows:
                yield projection.rows(split.topic, rows)


def _piece(task: Task, split: Split, piece: Piece, names: list[str]) -> Iterator[Any]:
    """Yield base batches, and a SeqGap for each loss found during the read."""
    at = piece.first
    files = _files() if task.in_place and piece.segment is not None else None
    if files is not None:
        try:
            for batch in files.read(split, piece, names):
                yield batch
                at = batch.column(0)[-1].as_py() + 1
        except files.Elsewhere:
            pass
        else:
            return
    yield from _from_server(task, split, at, piece.last, names)


def _files() -> Any:
    """Return the reader of files, or None in an executor without DriftQ."""
    try:
        from driftq.pipeline.source import local_segments as in_place
    except ImportError:
        return None
    return in_place


def _from_server(
    task: Task, split: Split, first: int, last: int, names: list[str], page: _FirstPage | None = None
) -> Iterator[Any]:
    """Yield base batches from the server. `page` is the first page, if it is known."""
    path = task.wire.topic_path(split.topic, "diff")
    cursor = first - 1
    while cursor < last:
        question = {
            "from_seq": cursor,
            "limit": min(PAGE_RECORDS, last - cursor),
            "max_batch_bytes": PAGE_BYTES,
            "include_tags": "tag" in names,
            "include_meta": "meta" in names,
        }
        try:
            found = page or _page(pa.ipc.open_stream(task.wire.arrow(path, question)))
        except AnswerError as error:
            if error.said != "topic_not_found":
                raise
            yield _lost(task, split, SeqGap(cursor + 1, last, "recreated"))
            return
        page, told = None, found.facts
        gap = json.loads(told["tombstone"] or "null")
        # The server reports `recreated` if the log ends before the cursor: records after that belong to another
        # incarnation.
        if int(told["epoch"]) != split.epoch or (gap is not None and gap["reason"] == "recreated"):
            yield _lost(task, split, SeqGap(cursor + 1, last, "recreated"))
            return
        if gap is not None and gap["gap_from"] <= last:
            told_gap = SeqGap(gap["gap_from"], min(gap["gap_to"], last), gap["reason"], gap.get("at_most", False))
            yield _lost(task, split, told_gap)
        for batch in found.batches:
            rows = _until(_base(batch, names), last)
            if rows.num_rows:
                yield rows
        cursor = int(told["next_from_seq"])
        if told["caught_up"] == "true":
            break
    if cursor < last:
        yield _lost(task, split, SeqGap(cursor + 1, last, "recreated"))  # the log ends below the planned end


def _base(batch: Any, names: list[str]) -> Any:
    columns = [batch.column(batch.schema.get_field_index(name)) for name in names]
    schema = base_schema(tuple(names))
    columns[0] = columns[0].view(pa.int64())
    return pa.RecordBatch.from_arrays(
        [column.cast(kind) for column, kind in zip(columns, schema.types, strict=True)], schema=schema
    )


def _until(batch: Any, last: int) -> Any:
    """Return the batch without rows above `last`; seqs are ascending."""
    seqs = batch.column(0)
    count = batch.num_rows
    if not count or seqs[count - 1].as_py() <= last:
        return batch
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if seqs[middle].as_py() <= last:
            low = middle + 1
        else:
            high = middle
    return batch.slice(0, low)


def _lost(task: Task, split: Split, gap: SeqGap) -> SeqGap:
    if task.on_data_loss == "fail":
        raise loss(split.topic, [gap])
    if task.on_data_loss == "skip":
        told = "%s during the read: they are skipped, and `lost` in the query's progress does not count them"
        _log.warning(told, _said(split.topic, [gap]))
    return gap


def loss(topic: str, gaps: list[SeqGap]) -> DataLossError:
    """Return the error for records that were lost."""
    return DataLossError(
        f"{_said(topic, gaps)} before they were read: set onDataLoss=rows to get the loss as a row, "
        "or onDataLoss=skip to continue without them"
    )


def deleted(topic: str, place: TopicOffset) -> DataLossError:
    """Return the error for a topic that was deleted."""
    return DataLossError(
        f"topic {topic!r} was deleted after seq {place.seq} was read: set onDataLoss=rows or onDataLoss=skip to "
        "continue without the rest of it, or give the query a new checkpoint"
    )


def _said(topic: str, gaps: list[SeqGap]) -> str:
    told = ", ".join(
        "the end of an earlier topic of this name (recreated)"
        if gap.reason == "recreated" and gap.last < gap.first
        else f"{'up to all of ' if gap.at_most else ''}seqs {gap.first}..{gap.last} ({gap.reason})"
        for gap in gaps[:5]
    )
    more = f" and {len(gaps) - 5} more ranges" if len(gaps) > 5 else ""
    lost = "may have lost" if all(gap.at_most for gap in gaps) else "has lost"
    return f"topic {topic!r} {lost} {told}{more}"
