"""Reads the rows of a replay: a range from the archive and the live log as one.

Invariant: records that the live log has lost since the plan was made are read from the archive, or the replay stops.
Holes of the log are left out and reported. Records that are lost between a look at the log and the end of reading make
the step fail; the next look shows the loss.
"""

from functools import reduce
from typing import TYPE_CHECKING

from driftq.pipeline.errors import AbsentError, PipelineError
from driftq.pipeline.jobs.replay.replay_plan import (
    Archived,
    ReplayPlan,
    ReplayRequest,
    SeqBounds,
    Wanted,
    beside,
    bounds,
    check_archived,
    holes,
    joined,
    step_rows,
)
from driftq.pipeline.jobs.replay.topic_archive import TopicArchive
from driftq.pipeline.jobs.topic_selection import exists
from driftq.pipeline.offsets import same_server
from driftq.pipeline.runs.job import JobRun
from driftq.pipeline.source.split_plan import SeqGap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from driftq.model.v0_additions import SegmentManifest

COLUMNS = ("node", "tag", "meta", "data")
_NEVER = (1 << 62) - 1


class ReplaySource:
    """A topic, as its server and a lake have it."""

    def __init__(self, run: JobRun, topic: str, lake: str | None) -> None:
        self._run = run
        self._topic = topic
        self._archive = TopicArchive(lake, topic)

    # Planning

    def plan(self, name: str, asked: ReplayRequest, most: int) -> ReplayPlan:
        """Return a plan with steps of at most `most` records. Raises PipelineError if records are missing."""
        manifest = self._manifest()
        epoch = asked.epoch
        if epoch is None:
            epoch = manifest.epoch if manifest is not None else self._archive.newest()
        if epoch is None:
            raise AbsentError(f"there is no topic {self._topic!r}, neither on the server nor in an archive (--lake)")
        live = None
        if manifest is not None and manifest.epoch == epoch:
            live = SeqBounds(manifest.earliest_seq, manifest.head_seq)
        wanted = Wanted(self._first(asked, epoch, live), self._last(asked, epoch, live))
        first, last, border = bounds(self._topic, wanted, live, self._archive.of(epoch))
        step = min(most, step_rows(self._record_bytes(archived=first < border, live=live is not None)))
        plan = ReplayPlan(name, asked, epoch, first, last, border, step)
        if plan.seqs:
            self.rows(plan, first, last)  # Spark reports an error of the condition here, before anything is created
        return plan

    def _record_bytes(self, *, archived: bool, live: bool) -> float:
        """Return the estimated size of a record in bytes, in the archive or the live log, whichever is larger."""
        known = [self._archive.record_bytes() if archived else 0.0]
        if live:
            info = self._run.client.topic(self._topic).info(touch=False)
            known.append(info.bytes / max(1, info.count))
        return max(known)

    def _first(self, asked: ReplayRequest, epoch: int, live: SeqBounds | None) -> int | None:
        if asked.from_ms is None:
            return asked.from_seq
        return max(self._seq_at(epoch, live, asked.from_ms), asked.from_seq or 1)

    def _last(self, asked: ReplayRequest, epoch: int, live: SeqBounds | None) -> int | None:
        if asked.to_ms is None:
            return asked.to_seq
        found = self._seq_at(epoch, live, asked.to_ms) - 1
        return found if asked.to_seq is None else min(found, asked.to_seq)

    def _seq_at(self, epoch: int, live: SeqBounds | None, at_ms: int) -> int:
        """Return the first seq with a record of this time or later. Times never decrease from one seq to the next."""
        from pyspark.sql import functions as f

        if self._archive.paths():
            rows = self._archived_rows(epoch)
            found = rows.where(f.col("ts") >= f.timestamp_millis(f.lit(at_ms))).agg(f.min("seq")).first()
            before = None if found is None else found[0]
            if before is not None and (live is None or before < live.first):
                return int(before)
        if live is None:
            return _NEVER
        page = self._run.client.topic(self._topic).diff(from_ts=at_ms, limit=1)
        return int(page.records[0].seq) if page.records else page.next_from_seq + 1

    # Reading

    def rows(self, plan: ReplayPlan, first: int, last: int) -> "DataFrame":
        """Return the rows of a range, in the order of their seqs. Raises PipelineError if some are missing."""
        manifest = self._manifest_of(plan)
        border = _border(plan, manifest)
        parts = []
        if first < border:
            archive = self._checked(plan, first, min(last, border - 1))
            rows = self._archived(plan, first, min(last, border - 1))
            parts.append((rows.dropDuplicates(["seq"]) if archive.seqs.repeated else rows).sort("seq"))
        if manifest is not None and last >= border:
            known = joined(SeqGap(hole.first, hole.last, "") for hole in manifest.holes)
            whole = beside(known, max(first, border), last)
            parts += [self._live(*part) for part in whole] or [self._live(last, last).limit(0)]
        rows = reduce(lambda before, behind: before.unionByName(behind), parts)
        if plan.asked.where is not None:
            rows = rows.where(plan.asked.where)
        return rows.select(*COLUMNS)

    def _checked(self, plan: ReplayPlan, first: int, last: int) -> Archived:
        """Return the archive, which must have all of a range. It is read again if not, because it may still grow."""
        try:
            check_archived(plan.topic, first, last, self._archive.of(plan.epoch))
        except PipelineError:
            self._archive.refresh()
            check_archived(plan.topic, first, last, self._archive.of(plan.epoch))
        archive = self._archive.of(plan.epoch)
        assert archive is not None, "a range that passed the check has an archive"
        return archive

    def _live(self, first: int, last: int) -> "DataFrame":
        reader = self._run.spark.read.format("driftq").option("server", self._run.server).option("topic", self._topic)
        reader = reader.option("startingSeq", first).option("endingSeq", last).option("onDataLoss", "fail")
        return reader.load().select("topic", "seq", "ts", *COLUMNS)

    def _archived(self, plan: ReplayPlan, first: int, last: int) -> "DataFrame":
        from pyspark.sql import functions as f

        return self._archived_rows(plan.epoch).where(f.col("seq").between(first, last))

    def _archived_rows(self, epoch: int) -> "DataFrame":
        from pyspark.sql import functions as f

        rows = self._run.spark.read.parquet(*self._archive.paths())
        rows = rows.where((f.col("topic") == self._topic) & (f.col("epoch") == epoch))
        return rows.select("topic", "seq", "ts", *COLUMNS)

    # Losses

    def holes(self, plan: ReplayPlan, first: int, last: int) -> list[SeqGap]:
        """Return the holes of the log inside a range, as the archive or the server reports them."""
        manifest = self._manifest_of(plan)
        border = _border(plan, manifest)
        found = holes(self._archive.of(plan.epoch), first, min(last, border - 1)) if first < border else []
        for hole in manifest.holes if manifest is not None else ():
            gap = SeqGap(max(first, border, hole.first), min(last, hole.last), hole.reason, hole.at_most)
            if gap.first <= gap.last:
                found.append(gap)
        return found

    def _manifest_of(self, plan: ReplayPlan) -> "SegmentManifest | None":
        """Return the current manifest of a plan's topic. None if it is gone, is another topic, or has lost its end."""
        manifest = self._manifest()
        if manifest is None or manifest.epoch != plan.epoch or manifest.head_seq < plan.last:
            return None
        return manifest

    def _manifest(self) -> "SegmentManifest | None":
        """Return the manifest of the live log, or None if there is none.

        A topic of another server than the archive's does not count; all rows come from the archive then.
        """
        client = self._run.client
        manifest = client.topic(self._topic).segments() if exists(client, self._topic) else None
        if manifest is None or not same_server(self._archive.server_id(), manifest.server_id):
            return None
        return manifest


def _border(plan: ReplayPlan, manifest: "SegmentManifest | None") -> int:
    """Return the seq from which the live log is read now. Its start moves, and it may be another topic of that name."""
    return plan.last + 1 if manifest is None else max(plan.border, manifest.earliest_seq)
