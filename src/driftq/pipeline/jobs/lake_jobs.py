"""`compact` and `erase`: upkeep of a lake, without Spark. `lake.table_upkeep` does the work on tables."""

import getpass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Annotated, Any

import pyarrow as pa
from msgspec import Meta, Struct

from driftq.client import NotFoundError
from driftq.pipeline.errors import AbsentError, PipelineError
from driftq.pipeline.jobs.topic_selection import is_pattern
from driftq.pipeline.lake.delta_tables import Lake, WriterBatch
from driftq.pipeline.lake.lake_owner import claim
from driftq.pipeline.lake.server_topics import ServerTopics
from driftq.pipeline.lake.table_layout import BAD_RECORDS, ERASURES
from driftq.pipeline.lake.table_upkeep import compact, erase, remove_leftovers
from driftq.pipeline.runs.job import JobResult, JobRun, PipelineJob
from driftq.system.clock import SystemClock
from driftq.system.entropy import SystemEntropy

RETAIN_HOURS = 168.0
_STAGED_HOURS_MIN = 24.0
"""How long a file of a task stays at least, however short the retention: a batch of a running archive may need it."""
_MS = 1000


class CompactOptions(Struct, frozen=True, kw_only=True):
    """Options of the job `compact`."""

    lake: Annotated[str, Meta(description="Directory of the lake.")]
    retain_hours: Annotated[
        Annotated[float, Meta(ge=0)],
        Meta(description="Remove replaced files after so many hours; readers need them no longer than this."),
    ] = RETAIN_HOURS


class EraseOptions(Struct, frozen=True, kw_only=True):
    """Options of the job `erase`."""

    lake: Annotated[str, Meta(description="Directory of the lake.")]
    tag: Annotated[str, Meta(description="Records with exactly this tag are deleted.")]
    topics: Annotated[list[str], Meta(description="Topics or patterns. Default: all topics of the lake.")] = []


def compact_lake(lake: Lake, retain_hours: float) -> JobResult:
    """Merge the small files of all tables of records."""
    tables = [*lake.archives(), lake.table("bad_records", BAD_RECORDS)]
    done = [compact(lake, table, retain_hours=retain_hours) for table in tables if table.exists()]
    left_over = remove_leftovers(lake, retain_hours=max(retain_hours, _STAGED_HOURS_MIN))
    facts = {
        "tables": len(done),
        "files_before": sum(table.files_before for table in done),
        "files_after": sum(table.files_after for table in done),
        "removed": sum(table.removed for table in done) + left_over,
    }
    return JobResult(facts, {"tables": [table._asdict() for table in done]})


def run_compact(run: JobRun, options: CompactOptions) -> JobResult:
    """Merge the small files of a lake. Raises AbsentError if there is no lake."""
    return compact_lake(_existing(options.lake), options.retain_hours)


def run_erase(run: JobRun, options: EraseOptions) -> JobResult:
    """Delete by tag in the live topics first, and then in the lake, so that a repeated run finishes an interrupted one.

    Notes selector, time, caller and counts in the table `erasures`.
    """
    lake = _existing(options.lake)
    claim(lake, ServerTopics(run.client).server_id())
    if not options.tag:
        raise PipelineError("--tag is empty: name the tag whose records are erased")
    tables = [table for table in (*lake.archives(), lake.table("bad_records", BAD_RECORDS)) if table.exists()]
    known = sorted({topic for table in tables for topic, _ in table.recorded()})
    topics = _chosen(options.topics, [*known, *(row.topic for row in run.client.topics())]) or known
    live: dict[str, int] = {}
    for topic in topics:
        try:
            live[topic] = run.client.topic(topic).delete_records(match=("tag", "Eq", options.tag)).deleted
        except NotFoundError:
            live[topic] = 0
    archived = dict.fromkeys(topics, 0)
    for table in tables:
        for topic, count in erase(table, options.tag, topics).items():
            archived[topic] += count
    rows = [{"topic": topic, "live_records": live[topic], "lake_rows": archived[topic]} for topic in topics]
    _note(lake, options.tag, rows)
    facts = {"tag": options.tag, "live_records": sum(live.values()), "lake_rows": sum(archived.values())}
    return JobResult(facts, {"erased": rows})


def _chosen(wanted: list[str], known: list[str]) -> list[str]:
    """Return the topics that names and patterns select. Raises AbsentError if one selects nothing."""
    found: set[str] = set()
    for text in wanted:
        matching = {topic for topic in known if (fnmatchcase(topic, text) if is_pattern(text) else topic == text)}
        if not matching:
            raise AbsentError(f"no topic of the lake or the server matches {text!r}; `driftq topic ls` lists topics")
        found |= matching
    return sorted(found)


def _note(lake: Lake, tag: str, rows: list[dict[str, Any]]) -> None:
    at, caller = datetime.fromtimestamp(SystemClock().wall_ms() / _MS, UTC), getpass.getuser()
    noted = [{**row, "selector": f"tag = {tag}", "at": at, "caller": caller} for row in rows]
    batch = WriterBatch(f"erase:{SystemEntropy().token(16).hex()}", 0)
    lake.table("erasures", ERASURES).append(pa.Table.from_pylist(noted, ERASURES), batch)


def _existing(path: str) -> Lake:
    lake = Lake(path)
    if not lake.root.is_dir():
        raise AbsentError(f"there is no lake in {path}; `driftq pipeline run archive` makes one")
    return lake


COMPACT: PipelineJob[Any] = PipelineJob(
    "compact", "Merge the small files of a lake, and remove files that nothing needs.", CompactOptions, run_compact
)
ERASE: PipelineJob[Any] = PipelineJob(
    "erase", "Delete records by tag in the topics and in the lake.", EraseOptions, run_erase
)
