"""`replay`: writes a range of a topic, read from the archive and the live log as one, into a topic or a queue.

The plan is made once and stored with the destination, as the meta of the named cursor `replay:<name>`. Its steps are
batches of one writer, so each is published once. A replay that is started again continues after the last step.

Invariant: if the same replay is started several times at once, one of them continues. The others either find its plan
and write the same batches, or have overwritten its plan with theirs, notice that, and stop before they write.
"""

from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from msgspec import Meta, Struct, ValidationError, json

from driftq.client import Client, NotFoundError
from driftq.pipeline.errors import PipelineError
from driftq.pipeline.jobs.pace import Pace, step_of
from driftq.pipeline.jobs.replay.replay_plan import STEP_ROWS, ReplayPlan, ReplayRequest, SeqBounds, first_half, joined
from driftq.pipeline.jobs.replay.replay_source import ReplaySource
from driftq.pipeline.jobs.topic_selection import exists
from driftq.pipeline.runs.job import JobResult, JobRun, PipelineJob, Progress
from driftq.pipeline.runs.run_records import state_directory
from driftq.pipeline.source import read_columns as metas
from driftq.pipeline.source.split_plan import SeqGap

if TYPE_CHECKING:
    from driftq.model.v0_additions import StagedWriterState


def to_ms(text: str, flag: str) -> int:
    """Return the Unix ms of an ISO time (UTC if it has no zone) or of a number. Raises PipelineError, with the flag."""
    if text.isdecimal():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise PipelineError(
            f"{flag} {text!r} is not a time: write 2026-11-16T12:00:00Z, or Unix milliseconds"
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1000)


_TOO_LARGE = "bytes in one commit; the limit"
"""Part of the server's message for a commit that is too large. Spark repeats the message in its error."""
_LOST = "before they were read: set onDataLoss"
"""Part of our reader's message for records that were lost after planning. Spark repeats it in its error."""
_LOOKS = 10
"""How often a step is tried again after such a loss. After that, the log loses records faster than they are read."""


class ReplayOptions(Struct, frozen=True, kw_only=True):
    """Options of the jobs `replay` and `backfill`."""

    topic: Annotated[str, Meta(description="Topic to read; @NAME for a broker topic.")]
    to: Annotated[str, Meta(description="Topic or queue to write to; created as a log if it does not exist.")]
    lake: Annotated[str | None, Meta(description="Lake of `archive`, for records that the topic no longer has.")] = None
    from_seq: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="First seq.")] = None
    to_seq: Annotated[Annotated[int, Meta(ge=0)] | None, Meta(description="Last seq.")] = None
    from_time: Annotated[
        str | None, Meta(description="Records from this time on: 2026-11-16T12:00:00Z, or Unix ms.")
    ] = None
    to_time: Annotated[str | None, Meta(description="Records before this time.")] = None
    where: Annotated[str | None, Meta(description="SQL condition on topic, seq, ts, node, tag, meta, data.")] = None
    rate: Annotated[Annotated[float, Meta(gt=0)] | None, Meta(description="Maximum records per second.")] = None
    dry_run: Annotated[bool, Meta(description="Only show what would be written.")] = False
    name: Annotated[
        str | None, Meta(description="Name of the replay: the same name continues it, another starts again.")
    ] = None
    epoch: Annotated[int | None, Meta(description="Epoch of an earlier topic of this name in the archive.")] = None


def run_replay(run: JobRun, options: ReplayOptions) -> JobResult:
    """Write the range, or the rest of it if the replay has run before."""
    source = ReplaySource(run, options.topic, options.lake)
    asked = _asked(options)
    name = _cursor_name(options, asked)
    most = step_of(options.rate, STEP_ROWS)
    if options.dry_run:
        plan = source.plan(name, asked, most)
        rows = source.rows(plan, plan.first, plan.last).count() if plan.seqs else 0
        counted = {"rows": rows, "dry_run": True}
        return _outcome(plan, options, counted, source.holes(plan, plan.first, plan.last))
    lock = sha256(f"{run.server}\n{options.to}\n{name}".encode()).hexdigest()[:12]
    run.checkpoint(state_directory() / "checkpoints" / f"replay-{lock}")
    plan = _kept(run.client, options.to, name, asked) or _keep(run.client, options.to, source.plan(name, asked, most))
    before = _done(run.client, options.to, plan)
    lost = source.holes(plan, plan.first, before)
    written = _write(run, options, source, plan, before, lost)
    counted = {"rows": written.rows, "resumed": before >= plan.first, "steps": written.steps}
    return _outcome(plan, options, counted, lost)


def _outcome(plan: ReplayPlan, options: ReplayOptions, counted: dict[str, Any], lost: list[SeqGap]) -> JobResult:
    holes = joined(lost)
    table = [{"first_seq": hole.first, "last_seq": hole.last, "reason": hole.reason} for hole in holes]
    facts = {**_facts(plan, options), **counted, "lost": sum(hole.last - hole.first + 1 for hole in holes)}
    return JobResult(facts, {"lost": table} if table else {})


class _Written(NamedTuple):
    """The number of rows and steps that a run has written."""

    rows: int
    steps: int


def _write(
    run: JobRun, options: ReplayOptions, source: ReplaySource, plan: ReplayPlan, behind: int, lost: list[SeqGap]
) -> _Written:
    """Write the remaining steps, and append the holes that they contain to `lost`."""
    pace = Pace(options.rate)
    rows = steps = 0
    while behind < plan.last and not run.stopping():
        step = _publish(run, options, source, plan, plan.behind(behind))
        behind = step.last
        steps += 1
        rows += _step_rows(run.client, options.to, plan, step)
        lost += source.holes(plan, step.first, step.last)  # after the step, because reading is what finds damage
        run.tell(
            Progress(
                rows=rows,
                rows_per_s=pace.rows_per_s(rows),
                batches=steps,
                total=plan.seqs,
                lag=plan.last - behind,
                note=f"seq {behind} of {plan.last}",
            )
        )
        if run.pause(pace.wait_s(rows)):
            break
    return _Written(rows, steps)


def _publish(run: JobRun, options: ReplayOptions, source: ReplaySource, plan: ReplayPlan, step: SeqBounds) -> SeqBounds:
    """Publish a step, or as much of its first half as the server accepts, and return what was published."""
    looks = 0
    while True:
        rows = metas.as_text(source.rows(plan, step.first, step.last))
        writer = rows.write.format("driftq").mode("append").option("server", run.server).option("topic", options.to)
        try:
            writer.option("writer", plan.writer).option("batch", step.last).save()
        except Exception as refusal:
            if _TOO_LARGE in str(refusal) and step.first < step.last:
                step = first_half(step)
            elif _LOST in str(refusal) and looks < _LOOKS:
                looks += 1
            else:
                raise
        else:
            return step


# The request, and the state on the server


def _facts(plan: ReplayPlan, options: ReplayOptions) -> dict[str, Any]:
    return {
        "topic": plan.topic,
        "to": options.to,
        "name": plan.name.partition(":")[2],
        "first_seq": plan.first,
        "last_seq": plan.last,
        "from_archive": max(0, min(plan.last, plan.border - 1) - plan.first + 1),
        "from_live": max(0, plan.last - max(plan.first, plan.border) + 1),
    }


def _asked(options: ReplayOptions) -> ReplayRequest:
    return ReplayRequest(
        topic=options.topic,
        from_seq=options.from_seq,
        to_seq=options.to_seq,
        from_ms=None if options.from_time is None else to_ms(options.from_time, "--from-time"),
        to_ms=None if options.to_time is None else to_ms(options.to_time, "--to-time"),
        where=options.where,
        epoch=options.epoch,
    )


def _cursor_name(options: ReplayOptions, asked: ReplayRequest) -> str:
    """Return the name of the cursor. It is the same for the same request, whatever its rate and lake are."""
    return f"replay:{options.name if options.name is not None else asked.key()}"


def _keep(client: Client, to: str, plan: ReplayPlan) -> ReplayPlan:
    """Store a plan, so that the replay can continue; return the plan of another run if that was stored first."""
    if not exists(client, to):
        client.topic(to).create()
    found = _kept(client, to, plan.name, plan.asked)
    if found is not None:
        return found
    if not client.topic(to).set_cursor(plan.name, 0, meta={"plan": json.encode(plan).decode()}).moved:
        # The run that made the cursor just before may have a plan with another end. Both plans have the same writer,
        # so this plan also knows what that run writes.
        raise PipelineError(
            f"another run of this replay into {to!r} started at the same moment: wait until it ends, then start "
            "this one again to continue from there"
        )
    return plan


def _kept(client: Client, to: str, name: str, asked: ReplayRequest) -> ReplayPlan | None:
    """Return the plan of a cursor, or None. Raises PipelineError if it belongs to another replay."""
    try:
        found = client.topic(to).cursor(name)
    except NotFoundError:
        return None
    try:
        plan = json.decode((found.meta or {})["plan"], type=ReplayPlan)
    except (KeyError, ValidationError) as unknown:
        raise PipelineError(
            f"cursor {name!r} of topic {to!r} does not belong to a replay that can continue: choose another --name"
        ) from unknown
    unlike = plan.asked.unlike(asked)
    if unlike:
        raise PipelineError(f"another replay {name!r} into {to!r} exists: its {unlike}; choose another --name")
    return plan


def _done(client: Client, to: str, plan: ReplayPlan) -> int:
    """Return the last seq that is written, or the one before the first."""
    found = _writer(client, to, plan)
    return max(plan.first - 1, -1 if found is None else found.last_batch)


def _step_rows(client: Client, to: str, plan: ReplayPlan, step: SeqBounds) -> int:
    found = _writer(client, to, plan)
    return found.last_seq - found.first_seq + 1 if found is not None and found.last_batch == step.last else 0


def _writer(client: Client, to: str, plan: ReplayPlan) -> "StagedWriterState | None":
    try:
        return client.topic(to).writer(plan.writer)
    except NotFoundError:
        return None


REPLAY = PipelineJob(
    "replay", "Write a range of a topic, from archive and live log, to a topic or a queue.", ReplayOptions, run_replay
)
BACKFILL = PipelineJob("backfill", "Another name for replay.", ReplayOptions, run_replay)
