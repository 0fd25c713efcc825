"""`archive`: copies topics into Delta tables, each record once.

    source, gaps as rows → tasks write Parquet files → one commit per table with (query id, batch id)

Tasks write the files; the driver only commits the files that they report (`lake.parquet_parts`, `lake.archive_commit`).
A batch that runs again after a crash writes new files, and its commit finds that the table already has the batch. A
batch of another query, or of one that has lost its checkpoint, leaves out the rows that the table already has
(`lake.table_progress`).
"""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, structs

from driftq.pipeline.errors import AbsentError, PipelineError
from driftq.pipeline.jobs.lake_jobs import RETAIN_HOURS, compact_lake
from driftq.pipeline.jobs.start_seqs import chosen_now, starting
from driftq.pipeline.jobs.stream_options import StreamOptions, in_short, triggered
from driftq.pipeline.jobs.topic_selection import selection_key, source_options
from driftq.pipeline.lake.archive_commit import CommittedBatch, commit_parts, places_of, plan_batch
from driftq.pipeline.lake.delta_tables import Lake, LakeTable, WriterBatch
from driftq.pipeline.lake.lake_owner import check_owner, claim
from driftq.pipeline.lake.parquet_parts import write_parts
from driftq.pipeline.lake.server_topics import ServerTopics
from driftq.pipeline.lake.table_upkeep import reset
from driftq.pipeline.runs.job import JobResult, JobRun, PipelineJob
from driftq.pipeline.source import read_columns as metas
from driftq.pipeline.spark.query_checkpoint import query_id, ranges_of_batch
from driftq.system.clock import SystemClock
from driftq.system.entropy import SystemEntropy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_UNITS = {"s": 1, "m": 60, "h": 3600}
_COLUMNS = (
    "topic string, seq long, ts timestamp, node string, tag string, meta map<string,string>, data string, "
    "kind string, gap_from long, gap_to long, reason string"
)


class ArchiveOptions(StreamOptions, frozen=True, kw_only=True):
    """Options of the job `archive`."""

    topics: Annotated[list[str], Meta(description="Topics or patterns, for example 'orders,@runs.*'.")] = []  # noqa: RUF012  # msgspec copies it
    lake: Annotated[str, Meta(description="Directory of the lake; created if it does not exist.")]
    table: Annotated[
        str | None, Meta(description="Write all topics to one table with this name, instead of one table per topic.")
    ] = None
    rebuild: Annotated[
        str | None, Meta(description="Write this topic to its table again, from what the live topic has, and end.")
    ] = None
    compact_every: Annotated[
        str | None, Meta(description="Merge small files of the lake so often, for example 1h or 30m.")
    ] = None


class _Archive:
    """Writes batches, on the driver."""

    def __init__(self, lake: Lake, table: str | None, checkpoint: Path, rebuilt: str | None) -> None:
        self._lake = lake
        self._table = table
        self._rebuilt = rebuilt
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
        self._lake.check_rebuild(parts.keys() - {self._rebuilt})
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
    live = ServerTopics(run.client)
    pause_s = None if options.compact_every is None else seconds_of(options.compact_every)
    if options.rebuild is not None:
        return _rebuild(run, options, lake, live)
    name = f"archive-{selection_key(sorted(options.topics), options.table)}"
    return _copy(run, options, lake, live, name, pause_s)


def seconds_of(text: str) -> float:
    """Return a duration such as `90`, `30m` or `1h` in seconds. Raises PipelineError."""
    number, unit = (text[:-1], text[-1]) if text and text[-1] in _UNITS else (text, "s")
    try:
        found = float(number) * _UNITS[unit]
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise PipelineError(f"--compact-every {text!r} is not a duration: use seconds, or a number with s, m or h")
    return found


def _rebuild(run: JobRun, options: ArchiveOptions, lake: Lake, live: ServerTopics) -> JobResult:
    """Write one topic to its table again: rows that only the lake has stay, and all others come from the live topic."""
    topic = options.rebuild
    assert topic is not None, "the caller has checked"
    if options.topics not in ([], [topic]):
        raise PipelineError("--rebuild names the topic: leave --topics out")
    standing = live.standing(topic)
    if standing is None:
        raise AbsentError(f"there is no topic {topic!r} on the server to rebuild its table from")
    claim(lake, standing.server_id)
    if (config := run.client.topic(topic).info(touch=False).config).cap_records or config.cap_bytes or config.ttl_ms:
        raise PipelineError(
            f"topic {topic!r} has a cap or a TTL, and the table would lose records that it removes during the rebuild: "
            "set cap_records, cap_bytes and ttl_ms of the topic to null until the rebuild has ended"
        )
    holder = next((table for table in lake.archives() if table.holds(topic)), lake.target(topic, options.table))
    shared = holder.path.name if holder.path.parent == lake.root / "tables" else None
    mark = lake.rebuild_mark(topic)
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    done = reset(holder, topic, standing.epoch, standing.earliest)
    name = f"archive-rebuild-{selection_key(topic, SystemEntropy().token(8))}"
    again = structs.replace(options, topics=[topic], table=shared, once=True)
    found = _copy(run, again, lake, live, name, None)
    mark.unlink()
    shutil.rmtree(lake.checkpoint(name))
    return JobResult({**found.facts, "kept": done.kept, "unreadable_files": done.unreadable})


def _copy(
    run: JobRun, options: ArchiveOptions, lake: Lake, live: ServerTopics, name: str, pause_s: float | None
) -> JobResult:
    chosen = source_options(options.topics)
    now = chosen_now(run.client, chosen)
    checkpoint = Path(run.checkpoint(lake.checkpoint(name)))
    claim(lake, live.server_id())
    work = _Archive(lake, options.table, checkpoint, options.rebuild)
    begin = starting(now, live, checkpoint, work.target)
    reader = run.spark.readStream.format("driftq").schema(_COLUMNS).options(**chosen, **options.limits())
    rows = reader.options(withGaps="true", onDataLoss="rows", startingSeq=begin).load()
    writer = (
        rows.writeStream.queryName(name)
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(in_short(work.write))
    )
    progress = run.follow([triggered(writer, options).start()], ends=options.once, idle=_upkeep(lake, pause_s))
    facts = {"rows": work.rows, "bad_records": work.bad, "gaps": work.gaps}
    if progress.batches and not work.batches:
        facts = {"rows": progress.rows}  # with Spark Connect, `work` counts in the server: only Spark knows
    return JobResult({"lake": str(lake.root), **facts, "batches": progress.batches})


def _upkeep(lake: Lake, pause_s: float | None) -> Callable[[], None] | None:
    """Return the function that compacts the lake, once per pause, or None."""
    if pause_s is None:
        return None
    clock = SystemClock()
    last_ns = clock.monotonic_ns()

    def idle() -> None:
        nonlocal last_ns
        if clock.monotonic_ns() - last_ns >= pause_s * 1e9:
            compact_lake(lake, RETAIN_HOURS)
            last_ns = clock.monotonic_ns()

    return idle


ARCHIVE: PipelineJob[Any] = PipelineJob(
    "archive", "Copy topics into Delta tables, each record once.", ArchiveOptions, archive
)
