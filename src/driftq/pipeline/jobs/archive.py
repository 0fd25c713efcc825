"""`archive`: topics into Delta tables, each record once.

    source, gaps as rows → tasks write Parquet files → one commit per table with (query id, batch id)

Tasks write the files, the driver only commits what they tell (`lake.parts`, `lake.archive`). A batch that runs again
after a crash writes new files, and its commit finds that the table has the batch already. A query whose checkpoint is
new begins behind what the table has, so a lost checkpoint repeats nothing; where it began is noted beside the
checkpoint before the first batch, because Spark asks again after a crash in that batch.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
from msgspec import Meta, Struct, json

from driftq.pipeline.jobs import metas
from driftq.pipeline.jobs.checkpoints import end_of_batch, query_id
from driftq.pipeline.jobs.job import Job, Outcome, Run
from driftq.pipeline.jobs.selection import selection_key, source_options
from driftq.pipeline.jobs.streams import StreamOptions, triggered
from driftq.pipeline.lake.archive import Committed, commit_parts
from driftq.pipeline.lake.lake import Batch, Lake, Table
from driftq.pipeline.lake.live import ServerTopics
from driftq.pipeline.lake.parts import Places, write_parts
from driftq.pipeline.lake.verify import Live
from driftq.seam.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COLUMNS = (
    "topic string, seq long, ts timestamp, node string, tag string, meta map<string,string>, data string, "
    "kind string, gap_from long, gap_to long, reason string"
)


class ArchiveOptions(StreamOptions, frozen=True, kw_only=True):
    """What an archive can be told."""

    topics: Annotated[list[str], Meta(description="Topics or patterns, as 'orders,v1:runs.*'.")]
    lake: Annotated[str, Meta(description="Directory of the lake; made if it is not there.")]
    table: Annotated[
        str | None, Meta(description="One table of this name for all topics, instead of one for each.")
    ] = None


class _Start(Struct, frozen=True):
    """Where a query began: behind these seqs."""

    behind: dict[str, int]


class _Archive:
    """The work on one batch; on the driver."""

    def __init__(self, lake: Lake, table: str | None, checkpoint: Path) -> None:
        self._lake = lake
        self._table = table
        self._checkpoint = checkpoint
        self.batches = self.rows = self.bad = self.gaps = 0

    def write(self, rows: "DataFrame", batch: int) -> None:
        """Write a batch and commit it."""
        ends = end_of_batch(self._checkpoint, batch)
        places = Places(
            {topic: str(self._target(topic).path) for topic in ends},
            str(self._lake.root / "bad_records"),
            {topic: place.epoch for topic, place in ends.items()},
        )
        plain = metas.as_text(rows)
        told = [row["told"] for row in plain.mapInArrow(partial(write_parts, places=places), "told string").collect()]
        number = Batch(query_id(self._checkpoint), batch)
        self._count(commit_parts(self._lake, told, number, seen_ms=SystemClock().wall_ms()))

    def _target(self, topic: str) -> Table:
        return self._lake.shared(self._table) if self._table else self._lake.topic(topic)

    def _count(self, done: Committed) -> None:
        self.batches += 1
        self.rows += done.rows
        self.bad += done.bad
        self.gaps += done.gaps


def archive(run: Run, options: ArchiveOptions) -> Outcome:
    """Archive topics until stopped, or once."""
    lake = Lake(options.lake)
    chosen = source_options(options.topics)
    name = f"archive-{selection_key(sorted(options.topics), options.table)}"
    checkpoint = Path(run.checkpoint(lake.checkpoint(name)))
    reader = run.spark.readStream.format("driftq").schema(_COLUMNS).options(**chosen, **options.limits())
    reader = reader.option("withGaps", "true").option("onDataLoss", "rows")
    rows = reader.option("startingSeq", _starting(run, lake, options, checkpoint)).load()
    work = _Archive(lake, options.table, checkpoint)
    writer = rows.writeStream.queryName(name).option("checkpointLocation", str(checkpoint)).foreachBatch(work.write)
    progress = run.follow([triggered(writer, options).start()], ends=options.once)
    facts = {"rows": work.rows, "bad_records": work.bad, "gaps": work.gaps}
    if progress.batches and not work.batches:
        facts = {"rows": progress.rows}  # over Spark Connect the server's copy of `work` counts, and only Spark tells
    return Outcome({"lake": str(lake.root), **facts, "batches": progress.batches})


def _starting(run: Run, lake: Lake, options: ArchiveOptions, checkpoint: Path) -> str:
    """Where the query begins, as the source wants it: the next seq of each topic that the lake has; else the first."""
    note = checkpoint / "driftq-start.json"
    if not note.exists():
        fresh = note.with_suffix(".new")
        fresh.write_bytes(json.encode(_Start(_archived(lake, options.table, ServerTopics(run.client)))))
        fresh.replace(note)
    behind = json.decode(note.read_bytes(), type=_Start).behind
    return json.encode({topic: seq + 1 for topic, seq in behind.items()}).decode() if behind else "earliest"


def _archived(lake: Lake, table: str | None, live: Live) -> dict[str, int]:
    """The last seq of every topic that the lake has; a topic that was made again since is not one that it has."""
    last: dict[tuple[str, int], int] = {}
    for one in [lake.shared(table)] if table else lake.archives():
        for batch in one.dataset().to_batches(columns=["topic", "epoch", "seq"]):
            newest = pa.Table.from_batches([batch]).group_by(["topic", "epoch"]).aggregate([("seq", "max")])
            for row in newest.to_pylist():
                key = (row["topic"], row["epoch"])
                last[key] = max(last.get(key, 0), row["seq_max"])
    standings = {topic: live.standing(topic) for topic, _ in last}
    return {
        topic: seq
        for (topic, epoch), seq in last.items()
        if (standing := standings[topic]) is not None and standing.epoch == epoch
    }


ARCHIVE: Job[Any] = Job("archive", "Copy topics into Delta tables, each record once.", ArchiveOptions, archive)
