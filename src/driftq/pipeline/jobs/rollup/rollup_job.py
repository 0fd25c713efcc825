"""`rollup`: computes figures per topic, tenant and minute.

    records → minute of their time, tenant of their envelope → counts by bucket of age (Spark) → added to the table

A dead letter counts as an error, with the retries before it, in the topic and minute in which its message failed. A
redriven message counts as a retry. The dead-letter topics are read, too (`jobs.rollup.dead_letter_topics`). The age of
a record is measured at the start of the batch that read it.

Exactly once: a batch is added to the existing rows in one commit with (query id, batch id) and with the last counted
seq of each topic (`lake.table_progress`). Records that a query with another selection has counted are left out before.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta, json

from driftq.pipeline.jobs.rollup.dead_letter_topics import with_letters
from driftq.pipeline.jobs.rollup.minute_figures import AGE_BUCKET, ROLLUP, ROLLUP_KEYS, Minute, load_minutes
from driftq.pipeline.jobs.start_seqs import chosen_now, starting
from driftq.pipeline.jobs.stream_options import StreamOptions, in_short, triggered
from driftq.pipeline.jobs.topic_selection import selection_key
from driftq.pipeline.lake.delta_tables import Lake, LakeTable, WriterBatch
from driftq.pipeline.lake.lake_owner import check_owner, claim
from driftq.pipeline.lake.server_topics import ServerTopics
from driftq.pipeline.lake.table_progress import Move
from driftq.pipeline.runs.job import JobResult, JobRun, PipelineJob
from driftq.pipeline.spark.query_checkpoint import query_id, ranges_of_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COLUMNS = "topic string, seq long, ts timestamp, meta map<string,string>, data string"
_RECORD = """struct(topic, tenant_id, date_trunc('minute', ts) AS minute, bucket, 1L AS records,
  CAST(octet_length(data) AS LONG) AS bytes, 0L AS errors, IF(redriven AND failed.topic IS NULL, 1L, 0L) AS retries)"""
_FAILURE = """struct(failed.topic AS topic, tenant_id,
  date_trunc('minute', failed.at) AS minute, CAST(NULL AS INT) AS bucket, 0L AS records,
  0L AS bytes, 1L AS errors, greatest(failed.attempts - 1, 0L) AS retries)"""
_NOTE = "STRUCT<original_topic: STRING, routed_at_ms: LONG, attempts: LONG>"
_LETTER = """IF(broker,
  named_struct('topic',
    concat('@', replace(replace(replace(url_encode(note.original_topic), '+', '%20'), '*', '%2A'), '%3A', ':')),
    'at', coalesce(timestamp_millis(note.routed_at_ms), ts), 'attempts', note.attempts),
  named_struct('topic', meta['$dead_letter_from'], 'at', ts,
    'attempts', try_cast(meta['$dead_letter_deliveries'] AS LONG)))"""
"""A broker message has its topic in the envelope, a job in `meta`. `broker_topic` builds names in the same way."""


class RollupOptions(StreamOptions, frozen=True, kw_only=True):
    """Options of the job `rollup`."""

    lake: Annotated[str, Meta(description="Directory of the lake; created if it does not exist.")]
    topics: Annotated[tuple[str, ...], Meta(description="Topics or patterns to count.")] = ("*",)


def rollup(run: JobRun, options: RollupOptions) -> JobResult:
    """Update the figures: once, or until a stop is requested."""
    lake = Lake(options.lake)
    name = f"rollup-{selection_key(sorted(options.topics))}"
    checkpoint = Path(run.checkpoint(lake.checkpoint(name)))
    table = lake.table("rollup", ROLLUP)
    live = ServerTopics(run.client)
    claim(lake, live.server_id())
    chosen = with_letters(run.client, options.topics)
    begin = starting(chosen_now(run.client, chosen), live, checkpoint, lambda _: table)
    reader = run.spark.readStream.format("driftq").schema(_COLUMNS).options(**chosen, **options.limits())
    rows = reader.options(startingSeq=begin, onDataLoss="skip").load()

    def take(read: "DataFrame", batch: int) -> None:
        parts = ranges_of_batch(checkpoint, batch)
        check_owner(lake, parts.values())
        moves = table.moves(parts.values())
        cuts = {topic: move.cut for topic, move in moves.items() if move.cut > parts[topic].start}
        counted = counts(uncounted(read, cuts)).toArrow()
        add_minutes(table, counted, WriterBatch(query_id(checkpoint), batch), list(moves.values()))

    writer = rows.writeStream.queryName(name).option("checkpointLocation", str(checkpoint)).foreachBatch(in_short(take))
    progress = run.follow([triggered(writer, options).start()], ends=options.once)
    facts = {"rows": progress.rows, "batches": progress.batches, "minutes": table.dataset().count_rows()}
    return JobResult({"lake": str(lake.root), **facts})


def uncounted(rows: "DataFrame", cuts: Mapping[str, int]) -> "DataFrame":
    """Return the rows without records at or below the given seq of their topic."""
    from pyspark.sql import functions as f

    if not cuts:
        return rows
    known = f.from_json(f.lit(json.encode(cuts).decode()), "map<string,bigint>")
    return rows.where(f.col("seq") > f.coalesce(known[f.col("topic")], f.lit(0)))


def counts(rows: "DataFrame") -> "DataFrame":
    """Return the counts of a batch, by topic, tenant, minute and bucket of age."""
    told = rows.selectExpr(
        "*",
        "topic LIKE '@%' AS broker",
        "unix_millis(current_timestamp()) - unix_millis(ts) AS age_ms",
    )
    told = told.selectExpr(
        *("topic", "ts", "data", "broker", "meta", f"{AGE_BUCKET} AS bucket"),
        "coalesce(IF(broker, get_json_object(data, '$.envelope.tenant_id'), NULL), '') AS tenant_id",
        "IF(broker, get_json_object(data, '$.routing.meta.redriven'), meta['redriven']) != '' AS redriven",
        f"IF(broker, from_json(get_json_object(data, '$.envelope.dlq'), '{_NOTE}'), NULL) AS note",
    )
    told = told.selectExpr("*", f"{_LETTER} AS failed")
    both = f"CASE WHEN failed.topic IS NULL THEN array({_RECORD}) ELSE array({_RECORD}, {_FAILURE}) END"
    grouped = told.selectExpr(f"inline({both})").groupBy("topic", "tenant_id", "minute", "bucket")
    return grouped.sum("records", "bytes", "errors", "retries").toDF(
        *("topic", "tenant_id", "minute", "bucket", "records", "bytes", "errors", "retries")
    )


def add_minutes(table: LakeTable, counted: pa.Table, batch: WriterBatch, moves: Sequence[Move] = ()) -> bool:
    """Add the counts of a batch to the table. Returns False if that was done before."""
    if not len(counted):
        # The mark of an earlier incarnation must move back even if there is nothing to count.
        return any(move.anew for move in moves) and table.add([], batch, moves)
    if table.has(batch):
        return False
    ends = pc.min_max(counted["minute"])
    known = (pc.field("minute") >= ends["min"]) & (pc.field("minute") <= ends["max"])
    minutes = load_minutes(table.read(where=known).to_pylist())
    changed: dict[Any, Minute] = {}
    for row in counted.to_pylist():
        key = (row["topic"], row["tenant_id"], row["minute"])
        minute = changed.setdefault(key, minutes.get(key) or Minute(ages={}))
        minute.add(
            bucket=row["bucket"],
            records=row["records"],
            size=row["bytes"],
            errors=row["errors"],
            retries=row["retries"],
        )
    rows = pa.Table.from_pylist([minute.row(key) for key, minute in changed.items()], ROLLUP)
    return table.upsert(rows, ROLLUP_KEYS, batch, moves)


ROLLUP_JOB: PipelineJob[Any] = PipelineJob("rollup", "Figures per topic, tenant and minute.", RollupOptions, rollup)
