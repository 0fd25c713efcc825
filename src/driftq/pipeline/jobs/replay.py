"""Replay: a range of a topic, from the archive and the live log as if they were one, into a topic or a queue.

A plan is made once and kept with the destination, as the meta of the named cursor `replay:<name>`. Its steps are
batches of one writer, so each is published once; whoever starts the same replay again goes on behind the last one.

Invariant: what the live log has lost since the plan was made is read from the archive, or stops the replay. Its holes
are left out, and told.
"""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct, json

from driftq.client import Client, NotFoundError
from driftq.pipeline.errors import PipelineError
from driftq.pipeline.jobs import metas
from driftq.pipeline.jobs.job import Job, Outcome, Progress, Run
from driftq.pipeline.jobs.lookup import exists
from driftq.pipeline.jobs.pace import Pace, step_of
from driftq.pipeline.jobs.ranges import STEP_ROWS, Held, Plan, Wanted, bounds, check_archived, joined
from driftq.pipeline.jobs.times import to_ms
from driftq.pipeline.lake.lake import Lake
from driftq.pipeline.planning import Gap
from driftq.seam.entropy import SystemEntropy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from driftq.model.additions import Manifest

_COLUMNS = ("node", "tag", "meta", "data")


class ReplayOptions(Struct, frozen=True, kw_only=True):
    """What a replay takes."""

    topic: Annotated[str, Meta(description="the topic to read; v1:NAME for one of the broker")]
    to: Annotated[str, Meta(description="the topic or queue to write to; created as a log if it is not there")]
    lake: Annotated[str | None, Meta(description="the lake of `archive`, for what the topic has no more")] = None
    from_seq: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="first seq")] = None
    to_seq: Annotated[Annotated[int, Meta(ge=0)] | None, Meta(description="last seq")] = None
    from_time: Annotated[str | None, Meta(description="records from then on: 2026-11-16T12:00:00Z, or Unix ms")] = None
    to_time: Annotated[str | None, Meta(description="records before then")] = None
    where: Annotated[str | None, Meta(description="a condition in SQL on topic, seq, ts, node, tag, meta, data")] = None
    rate: Annotated[Annotated[float, Meta(gt=0)] | None, Meta(description="records per second at most")] = None
    dry_run: Annotated[bool, Meta(description="only say what would be written")] = False
    name: Annotated[str | None, Meta(description="of this replay: the same one goes on, another begins anew")] = None
    epoch: Annotated[int | None, Meta(description="of an earlier topic of this name that is in the archive")] = None


def run_replay(run: Run, options: ReplayOptions) -> Outcome:
    """Write the range, or what is left of it."""
    if options.dry_run:
        asked = _planned(run, options)
        counted = {"rows": _counted(run, options, asked), "dry_run": True}
        return _outcome(asked, options, counted, _holes(run, asked, asked.first, asked.last))
    if not exists(run.client, options.to):
        run.client.topic(options.to).create()
    plan = _kept(run.client, options.to, _cursor_name(options)) or _planned_anew(run, options)
    before = _last_step(run.client, options.to, plan)
    lost = _holes(run, plan, plan.first, plan.done(before))
    rows = _write(run, options, plan, before, lost)
    done = _last_step(run.client, options.to, plan)
    return _outcome(plan, options, {"rows": rows, "resumed": before >= 0, "steps": done - before}, lost)


def _outcome(plan: Plan, options: ReplayOptions, counted: dict[str, Any], lost: list[Gap]) -> Outcome:
    holes = joined(lost)
    table = [{"first_seq": hole.first, "last_seq": hole.last, "reason": hole.reason} for hole in holes]
    facts = {**_facts(plan, options), **counted, "lost": sum(hole.last - hole.first + 1 for hole in holes)}
    return Outcome(facts, {"lost": table} if table else {})


def _write(run: Run, options: ReplayOptions, plan: Plan, after: int, lost: list[Gap]) -> int:
    """Write the steps that are left, and add the holes that they met; how many rows they had."""
    pace = Pace(options.rate)
    rows = 0
    for number, first, last in plan.steps(after):
        if run.stopping():
            break
        writer = metas.as_text(_rows(run, options, plan, first, last)).write.format("driftq").mode("append")
        writer = writer.option("server", run.server).option("topic", options.to)
        writer.option("writer", plan.writer).option("batch", number).save()
        rows += _step_rows(run.client, options.to, plan, number)
        lost += _holes(run, plan, first, last)  # behind the step, for damage is found by reading
        run.tell(
            Progress(
                rows=rows,
                rows_per_s=pace.rows_per_s(rows),
                batches=number - after,
                total=plan.seqs,
                lag=plan.last - last,
                note=f"seq {last} of {plan.last}",
            )
        )
        if run.pause(pace.wait_s(rows)):
            break
    return rows


def _rows(run: Run, options: ReplayOptions, plan: Plan, first: int, last: int) -> "DataFrame":
    """The rows of a range, in the order of their seqs. Raises PipelineError where they are not all there."""
    parts = []
    border = _border(run, plan)
    if first < border:
        if border != plan.border:
            archive = _archive_held(run, options, plan.epoch)[1] if _files(options) else None
            check_archived(plan.topic, first, min(last, border - 1), archive)
        parts.append(_archived(run, options, plan, first, min(last, border - 1)).sort("seq"))
    if last >= border:
        parts.append(_live(run, plan, max(first, border), last))
    rows = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
    if plan.where is not None:
        rows = rows.where(plan.where)
    return rows.select(*_COLUMNS)


def _border(run: Run, plan: Plan) -> int:
    """From where on the live log is read by now: its beginning moves, and it may be another topic of that name."""
    manifest = _manifest(run, plan)
    return plan.last + 1 if manifest is None else max(plan.border, manifest.earliest_seq)


def _manifest(run: Run, plan: Plan) -> "Manifest | None":
    """What the live log of the plan's topic is by now; None where it is gone, or another topic of that name."""
    manifest = run.client.topic(plan.topic).segments() if exists(run.client, plan.topic) else None
    return manifest if manifest is not None and manifest.epoch == plan.epoch else None


def _holes(run: Run, plan: Plan, first: int, last: int) -> list[Gap]:
    """What the live log has lost inside a range that is read there."""
    manifest = _manifest(run, plan)
    if manifest is None:
        return []
    first = max(first, plan.border, manifest.earliest_seq)
    cut = [Gap(max(first, hole.first), min(last, hole.last), hole.reason) for hole in manifest.holes]
    return [gap for gap in cut if gap.first <= gap.last]


def _live(run: Run, plan: Plan, first: int, last: int) -> "DataFrame":
    reader = run.spark.read.format("driftq").option("server", run.server).option("topic", plan.topic)
    reader = reader.option("startingSeq", first).option("endingSeq", last).option("onDataLoss", "skip")
    return reader.load().select("topic", "seq", "ts", *_COLUMNS)


def _archived(run: Run, options: ReplayOptions, plan: Plan, first: int, last: int) -> "DataFrame":
    from pyspark.sql import functions as f

    rows = run.spark.read.parquet(*_files(options)).where(
        (f.col("topic") == plan.topic) & (f.col("epoch") == plan.epoch)
    )
    return rows.where(f.col("seq").between(first, last)).select("topic", "seq", "ts", *_COLUMNS)


def _files(options: ReplayOptions) -> Sequence[str]:
    """The files of the archive that may have rows of the topic."""
    if options.lake is None:
        return []
    return [file for table in Lake(options.lake).archives() for file in table.files()]


# Planning


def _planned_anew(run: Run, options: ReplayOptions) -> Plan:
    """A plan that is kept, so that the replay can go on."""
    plan = _planned(run, options)
    run.client.topic(options.to).set_cursor(_cursor_name(options), 0, meta={"plan": json.encode(plan).decode()})
    return plan


def _planned(run: Run, options: ReplayOptions) -> Plan:
    manifest = run.client.topic(options.topic).segments() if exists(run.client, options.topic) else None
    epoch = options.epoch if options.epoch is not None else manifest.epoch if manifest is not None else None
    live = None
    if manifest is not None and manifest.epoch == epoch:
        live = Held(manifest.earliest_seq, manifest.head_seq)
    archive = None
    if _files(options):
        epoch, archive = _archive_held(run, options, epoch)
    if epoch is None:
        raise PipelineError(f"there is no topic {options.topic!r}, neither at the server nor in an archive (--lake)")
    wanted = Wanted(_first(run, options, epoch, live), _last(run, options, epoch, live))
    first, last, border = bounds(options.topic, wanted, live, archive)
    identity = SystemEntropy().token(8).hex()
    return Plan(identity, options.topic, epoch, first, last, border, step_of(options.rate, STEP_ROWS), options.where)


def _archive_held(run: Run, options: ReplayOptions, epoch: int | None) -> tuple[int | None, Held | None]:
    """What the archive has of an epoch of the topic, else of the newest one there."""
    from pyspark.sql import functions as f

    rows = run.spark.read.parquet(*_files(options)).where(f.col("topic") == options.topic)
    if epoch is not None:
        rows = rows.where(f.col("epoch") == epoch)
    found = rows.groupBy("epoch").agg(f.min("seq"), f.max("seq")).sort(f.desc("epoch")).first()
    if found is None:
        return epoch, Held(1, 0)
    return found[0], Held(found[1], found[2])


def _first(run: Run, options: ReplayOptions, epoch: int, live: Held | None) -> int | None:
    if options.from_time is None:
        return options.from_seq
    found = _seq_at(run, options, epoch, live, to_ms(options.from_time, "--from-time"))
    return max(found, options.from_seq or 1)


def _last(run: Run, options: ReplayOptions, epoch: int, live: Held | None) -> int | None:
    if options.to_time is None:
        return options.to_seq
    found = _seq_at(run, options, epoch, live, to_ms(options.to_time, "--to-time")) - 1
    return found if options.to_seq is None else min(found, options.to_seq)


def _seq_at(run: Run, options: ReplayOptions, epoch: int, live: Held | None, at_ms: int) -> int:
    """The first seq whose record is from this time or later; times never fall from one seq to the next."""
    from pyspark.sql import functions as f

    if _files(options):
        rows = run.spark.read.parquet(*_files(options))
        rows = rows.where((f.col("topic") == options.topic) & (f.col("epoch") == epoch))
        found = rows.where(f.col("ts") >= f.timestamp_millis(f.lit(at_ms))).agg(f.min("seq")).first()
        before = None if found is None else found[0]
        if before is not None and (live is None or before < live.first):
            return int(before)
    if live is None:
        return (1 << 62) - 1
    page = run.client.topic(options.topic).diff(from_ts=at_ms, limit=1)
    return int(page.records[0].seq) if page.records else page.next_from_seq + 1


def _counted(run: Run, options: ReplayOptions, plan: Plan) -> int:
    """How many rows there are for the plan."""
    return _rows(run, options, plan, plan.first, plan.last).count() if plan.seqs else 0


# What is known of it at the server


def _facts(plan: Plan, options: ReplayOptions) -> dict[str, Any]:
    return {
        "topic": plan.topic,
        "to": options.to,
        "name": options.name or _cursor_name(options).partition(":")[2],
        "first_seq": plan.first,
        "last_seq": plan.last,
        "from_archive": max(0, min(plan.last, plan.border - 1) - plan.first + 1),
        "from_live": max(0, plan.last - max(plan.first, plan.border) + 1),
    }


def _cursor_name(options: ReplayOptions) -> str:
    """The same for the same question, whatever its rate."""
    if options.name is not None:
        return f"replay:{options.name}"
    asked = [options.topic, options.from_seq, options.to_seq, options.from_time, options.to_time, options.where]
    return f"replay:{hashlib.sha256(json.encode([*asked, options.lake, options.epoch])).hexdigest()[:16]}"


def _kept(client: Client, to: str, cursor: str) -> Plan | None:
    try:
        found = client.topic(to).cursor(cursor)
    except NotFoundError:
        return None
    text = (found.meta or {}).get("plan")
    if text is None:
        raise PipelineError(f"cursor {cursor!r} of topic {to!r} is none of a replay: choose another --name")
    return json.decode(text, type=Plan)


def _last_step(client: Client, to: str, plan: Plan) -> int:
    """The last step that is written, -1 before the first."""
    try:
        return client.topic(to).writer(plan.writer).last_batch
    except NotFoundError:
        return -1


def _step_rows(client: Client, to: str, plan: Plan, number: int) -> int:
    try:
        found = client.topic(to).writer(plan.writer)
    except NotFoundError:
        return 0
    return found.last_seq - found.first_seq + 1 if found.last_batch == number else 0


REPLAY = Job(
    "replay", "A range of a topic, from archive and live log, into a topic or a queue.", ReplayOptions, run_replay
)
BACKFILL = Job("backfill", "The same as replay.", ReplayOptions, run_replay)
