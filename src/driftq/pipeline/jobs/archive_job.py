"""`archive`: copies topics into Delta tables, each record once.

    source, gaps as rows → tasks write Parquet files → one commit per table with (query id, batch id)

Tasks write the files; the driver only commits the files that they report (`lake.parquet_parts`, `lake.archive_commit`).
A batch that runs again after a crash writes new files, and its commit finds that the table already has the batch. A
batch of another query, or of one that has lost its checkpoint, leaves out the rows that the table already has
(`lake.table_progress`).
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from driftq.pipeline.jobs.start_seqs import chosen_now, starting
from driftq.pipeline.jobs.stream_options import StreamOptions, in_short, triggered
from driftq.pipeline.jobs.topic_selection import selection_key, source_options
from driftq.pipeline.lake.archive_commit import CommittedBatch, commit_parts, places_of, plan_batch
from driftq.pipeline.lake.delta_tables import Lake, LakeTable, WriterBatch
from driftq.pipeline.lake.lake_owner import check_owner, claim
from driftq.pipeline.lake.parquet_parts import write_parts
from driftq.pipeline.lake.server_topics import ServerTopics
from driftq.pipeline.runs.job import JobResult, JobRun, PipelineJob
from driftq.pipeline.source import read_columns as metas
from driftq.pipeline.spark.query_checkpoint import query_id, ranges_of_batch
from driftq.system.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COLUMNS = (
    "topic string, seq long, ts timestamp, node string, tag string, meta map<string,string>, data string, "
    "kind string, gap_from long, gap_to long, reason string"
)


class ArchiveOptions(StreamOptions, frozen=True, kw_only=True):
    """Options of the job `archive`."""

    topics: Annotated[list[str], Meta(description="Topics or patterns, for example 'orders,@runs.*'.")]
    lake: Annotated[str, Meta(description="Directory of the lake; created if it does not exist.")]
    table: Annotated[
        str | None, Meta(description="Write all topics to one table with this name, instead of one table per topic.")
    ] = None


class _Archive:
    """Writes batches, on the driver."""

    def __init__(self, lake: Lake, table: str | None, checkpoint: Path) -> None:
        self._lake = lake
        self._table = table
        self._checkpoint = checkpoint
        self._targets: dict[str, LakeTable] = {}
        self.batches = self.rows = self.bad = self.gaps = 0

    def write(self, rows: "DataFrame", batch: int) -> None:
        """Write a batch to files and commit it."""
        parts = ranges_of_batch(self._checkpoint, batch)
        check_owner(self._lake, parts.values())
        plan = plan_batch(self._lake, parts, {topic: self.target(topic) for topic in parts})
        work = partial(write_parts, places=places_of(self._lake, plan))
        told = [row["told"] for row in metas.as_text(rows).mapInArrow(work, "told string").collect()]
        number = WriterBatch(query_id(self._checkpoint), batch)
        self._count(commit_parts(self._lake, plan, told, number, seen_ms=SystemClock().wall_ms()))

    def target(self, topic: str) -> LakeTable:
        """Return the table of a topic. Raises PipelineError if another table of the lake has the topic."""
        if topic not in self._targets:
            self._targets[topic] = self._lake.target(topic, self._table)
        return self._targets[topic]

    def _count(self, done: CommittedBatch) -> None:
        self.batches += 1
        self.rows += done.rows
        self.bad += done.bad
        self.gaps += done.gaps


def archive(run: JobRun, options: ArchiveOptions) -> JobResult:
    """Archive topics: once, or until a stop is requested."""
    lake = Lake(options.lake)
    chosen = source_options(options.topics)
    name = f"archive-{selection_key(sorted(options.topics), options.table)}"
    checkpoint = Path(run.checkpoint(lake.checkpoint(name)))
    live = ServerTopics(run.client)
    claim(lake, live.server_id())
    work = _Archive(lake, options.table, checkpoint)
    begin = starting(chosen_now(run.client, chosen), live, checkpoint, work.target)
    reader = run.spark.readStream.format("driftq").schema(_COLUMNS).options(**chosen, **options.limits())
    rows = reader.options(withGaps="true", onDataLoss="rows", startingSeq=begin).load()
    writer = (
        rows.writeStream.queryName(name)
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(in_short(work.write))
    )
    progress = run.follow([triggered(writer, options).start()], ends=options.once)
    facts = {"rows": work.rows, "bad_records": work.bad, "gaps": work.gaps}
    if progress.batches and not work.batches:
        facts = {"rows": progress.rows}  # with Spark Connect, `work` counts in the server: only Spark knows
    return JobResult({"lake": str(lake.root), **facts, "batches": progress.batches})


ARCHIVE: PipelineJob[Any] = PipelineJob(
    "archive", "Copy topics into Delta tables, each record once.", ArchiveOptions, archive
)
