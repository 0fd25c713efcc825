"""`redrive`: moves the dead letters that a SQL condition selects back to the topic where they failed.

Letters of queues (http-v0 §14.8) and of the broker (http-v1 §10) form one table to select from, `LETTERS`. The server
moves those of the broker (`broker_dead_letters`). This module moves those of queues, in groups:

    note in the audit topic, with its letters → write to the queues they came from, as a batch of a writer that is
    named after the note, so at most once → note that it is done

A dead-letter topic keeps its letters. The notes record which of them are moved, and later redrives leave those out. If
a group is noted but not done, the next redrive finishes it. Letters whose queue no longer exists by then are noted as
undelivered, and can be selected again.

Invariant: only one redrive of a dead-letter topic runs at a time; two might select the same letter.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct, json

from driftq.client import Record
from driftq.model.names import is_broker_topic
from driftq.pipeline.jobs.pace import Pace, step_of
from driftq.pipeline.jobs.redrive.broker_dead_letters import BrokerMover
from driftq.pipeline.jobs.redrive.dead_letter_table import LETTERS, DeadLetterRow, Mover, age_s, groups, read, selected
from driftq.pipeline.jobs.topic_selection import epoch_of, exists
from driftq.pipeline.runs.job import JobResult, JobRun, PipelineJob, Progress
from driftq.pipeline.runs.run_records import state_directory
from driftq.pipeline.source import read_columns as metas
from driftq.system.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_GROUP = 2000
"""Maximum number of letters per note, so that a note fits into a record."""


class RedriveOptions(Struct, frozen=True, kw_only=True):
    """Options of the job `redrive`."""

    topics: Annotated[list[str], Meta(description="Dead-letter topics; @dlq.NAME for a broker topic.", min_length=1)]
    where: Annotated[str | None, Meta(description=f"SQL condition on {', '.join(LETTERS)}.")] = None
    limit: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Maximum number of letters; the oldest go first.")
    ] = None
    rate: Annotated[Annotated[float, Meta(gt=0)] | None, Meta(description="Maximum letters per second.")] = None
    dry_run: Annotated[bool, Meta(description="Only show which letters would be moved.")] = False
    audit: Annotated[str, Meta(description="Topic that records every move of a queue's letters.")] = "audit.redrive"


class RedriveNote(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record of the audit topic."""

    kind: Literal["redrive", "redriven"]
    dlq: str
    epoch: int
    at_ms: int
    letters: list[DeadLetterRow] = []
    note: int | None = None
    """Only if `kind` is `redriven`: seq of the note that is done."""
    undelivered: list[DeadLetterRow] = []
    """Only if `kind` is `redriven`: letters of that note whose queue does not exist."""


def run_redrive(run: JobRun, options: RedriveOptions) -> JobResult:
    """Move letters back, topic by topic."""
    tally: dict[str, int] = defaultdict(int)
    rows: list[dict[str, Any]] = []
    pace = Pace(options.rate)
    for topic in options.topics:
        mover = _mover(run, options, topic)
        if not options.dry_run:
            digest = sha256(f"{run.server}\n{topic}".encode()).hexdigest()[:12]
            run.checkpoint(state_directory() / "checkpoints" / f"redrive-{digest}")
            tally["finished"] += mover.finish()
        left = None if options.limit is None else options.limit - tally["matched"]
        letters = selected(mover, options.where, left)
        tally["matched"] += len(letters)
        rows += _table(topic, letters)
        if not options.dry_run:
            move_letters(run, mover, letters, pace, tally)
        if run.stopping():
            break
    facts = {name: tally[name] for name in ("matched", "moved", "failed", "finished")}
    return JobResult({**facts, "dry_run": options.dry_run}, {"letters": rows})


def _mover(run: JobRun, options: RedriveOptions, topic: str) -> Mover:
    return BrokerMover(run, topic, options.rate) if is_broker_topic(topic) else _QueueMover(run, options, topic)


def move_letters(
    run: JobRun, mover: Mover, letters: Sequence[DeadLetterRow], pace: Pace, tally: dict[str, int]
) -> None:
    """Move letters at the pace of the job, and report its progress after each group."""
    for moved, failed in mover.move(letters):
        tally["moved"] += moved
        tally["failed"] += failed
        run.tell(
            Progress(
                rows=tally["moved"],
                rows_per_s=pace.rows_per_s(tally["moved"]),
                total=tally["matched"],
                lag=tally["matched"] - tally["moved"] - tally["failed"],
            )
        )
        run.pause(pace.wait_s(tally["moved"]))


def _table(topic: str, letters: Sequence[DeadLetterRow]) -> list[dict[str, Any]]:
    """Return how many letters go to each origin, as rows."""
    counts: dict[str, int] = defaultdict(int)
    for letter in letters:
        counts[letter.origin] += 1
    return [{"dlq": topic, "origin": origin, "letters": counts[origin]} for origin in sorted(counts)]


class _QueueMover:
    """Moves letters of queues, from a dead-letter topic of `/v0`."""

    def __init__(self, run: JobRun, options: RedriveOptions, topic: str) -> None:
        self._run = run
        self._topic = topic
        self._audit = options.audit
        self._rate = options.rate
        self._epoch = epoch_of(run.client, topic)
        self._clock = SystemClock()

    def letters(self) -> "DataFrame":
        """Return the letters that no redrive has moved."""
        from pyspark.sql import functions as f

        rows = read(self._run, self._topic)
        meta = rows["meta"]
        rows = rows.select(
            f.col("topic").alias("dlq"),
            "seq",
            "ts",
            age_s().alias("age_s"),
            meta["$dead_letter_from"].alias("origin"),
            meta["$dead_letter_src_seq"].cast("long").alias("origin_seq"),
            meta["$dead_letter_deliveries"].cast("long").alias("deliveries"),
            f.lit("max_deliveries").alias("reason"),
            meta["tenant_id"].alias("tenant"),
            meta["run_id"].alias("run_id"),
            f.lit(None).cast("string").alias("failed_group"),
            "tag",
            "data",
        )
        rows = rows.where(f.col("origin").isNotNull())
        moved = self._moved()
        if not moved:
            return rows
        known = self._run.spark.createDataFrame([(seq,) for seq in moved], "seq long")
        return rows.join(f.broadcast(known), "seq", "left_anti").select(*LETTERS)

    def waiting(self, letters: Sequence[DeadLetterRow]) -> Sequence[DeadLetterRow]:
        """Return `letters` unchanged: the method `letters` has already left out those that an earlier redrive moved."""
        return letters

    def _moved(self) -> list[int]:
        """Return the seqs of noted letters, without those that were undelivered."""
        left = {(note.note, letter.seq) for _, note in self._notes("redriven") for letter in note.undelivered}
        noted = {(seq, letter.seq) for seq, note in self._notes("redrive") for letter in note.letters}
        return sorted({seq for _, seq in noted - left})

    def finish(self) -> int:
        """Finish groups that were noted but not done. Returns how many letters were moved."""
        done = {note.note for _, note in self._notes("redriven")}
        count = 0
        for seq, note in self._notes("redrive"):
            if seq not in done:
                homes, lost = self._sorted(note.letters)
                self._write(seq, homes, lost)
                count += len(homes)
        return count

    def _sorted(self, letters: Sequence[DeadLetterRow]) -> tuple[list[DeadLetterRow], list[DeadLetterRow]]:
        """Return the letters whose queue exists, and those whose queue does not."""
        there = {origin for origin in {letter.origin for letter in letters} if exists(self._run.client, origin)}
        homes = [letter for letter in letters if letter.origin in there]
        return homes, [letter for letter in letters if letter.origin not in there]

    def move(self, letters: Sequence[DeadLetterRow]) -> Iterator[tuple[int, int]]:
        """Move letters in groups. Yields how many were moved, and how many have no queue."""
        homes, lost = self._sorted(letters)
        if lost:
            yield 0, len(lost)
        for group in groups(homes, step_of(self._rate, _GROUP)):
            if self._run.stopping():
                return
            noted = self._note(RedriveNote(kind="redrive", **self._head(), letters=list(group)))
            self._write(noted, group)
            yield len(group), 0

    def _write(self, noted: int, letters: Sequence[DeadLetterRow], lost: Sequence[DeadLetterRow] = ()) -> None:
        """Write the letters of a note back, once, and note that this is done, with the undelivered letters."""
        if letters:
            self._put_back(noted, letters)
        self._note(RedriveNote(kind="redriven", **self._head(), note=noted, undelivered=list(lost)))

    def _put_back(self, noted: int, letters: Sequence[DeadLetterRow]) -> None:
        from pyspark.sql import functions as f

        audit_epoch = epoch_of(self._run.client, self._audit)
        seqs = [letter.seq for letter in letters]
        rows = read(self._run, self._topic, startingSeq=str(min(seqs)), endingSeq=str(max(seqs)))
        known = f.coalesce("meta", f.create_map().cast("map<string,string>"))
        own = f.map_filter(known, lambda key, _: ~key.startswith("$dead_letter") & (key != "redriven"))
        mark = f.create_map(f.lit("redriven"), f.lit(f"{self._audit}:{noted}"))
        rows = rows.where(f.col("seq").isin(seqs)).select(
            f.col("meta")["$dead_letter_from"].alias("topic"),
            "data",
            "tag",
            "node",
            f.map_concat(own, mark).alias("meta"),
        )
        writer = metas.as_text(rows).write.format("driftq").mode("append").option("server", self._run.server)
        writer = writer.option("createTopic", "false").option("writer", f"redrive:{audit_epoch}:{noted}")
        writer.option("batch", "0").save()

    def _head(self) -> dict[str, Any]:
        return {"dlq": self._topic, "epoch": self._epoch, "at_ms": self._clock.wall_ms()}

    def _note(self, note: RedriveNote) -> int:
        """Write a note, wait until it is synced, and return its seq."""
        audit = self._run.client.topic(self._audit)
        if not exists(self._run.client, self._audit):
            audit.create(durability="fsync")
        written = audit.append(json.decode(json.encode(note)), tag=self._topic[:_TAG_MAX])
        seq = int(written.last_seq)
        audit.info(touch=False, wait_synced=seq, wait_ms=30_000)
        return seq

    def _notes(self, kind: str) -> Iterator[tuple[int, RedriveNote]]:
        """Yield the notes of this dead-letter topic, with their seqs."""
        if not exists(self._run.client, self._audit):
            return
        for item in self._run.client.topic(self._audit).read(0):
            if isinstance(item, Record) and item.tag == self._topic[:_TAG_MAX]:
                note = json.decode(json.encode(item.data), type=RedriveNote)
                if (note.kind, note.dlq, note.epoch) == (kind, self._topic, self._epoch):
                    yield item.seq, note


_TAG_MAX = 255

REDRIVE = PipelineJob(
    "redrive", "Move dead letters that a SQL condition selects back to where they failed.", RedriveOptions, run_redrive
)
