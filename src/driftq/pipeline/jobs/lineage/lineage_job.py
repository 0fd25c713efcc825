"""`lineage`: writes what agent runs did to the tables `runs`, `steps` and `attempts`.

    topics of the broker → records with a run_id → state of each run (Spark's state store) → runs that changed
      → the server is asked about them and about every open run → rows of three tables, replaced by their keys

Spark keeps the state of each run from the log, so the cost of a batch depends on its new records only. No record
contains whether a message is done. So the server is asked about every open run, even if a batch has no records of the
run, and even if there are no batches.

Invariant: the rows of a run are computed from everything that is known of it, so a batch that runs again writes the
same rows.
"""

import threading
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol
from urllib.parse import quote

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta, Struct, convert, json, structs

from driftq.model.names import broker_topic
from driftq.pipeline.errors import PipelineError
from driftq.pipeline.jobs.lineage.run_fold import BrokerRecord, dump, fold, load
from driftq.pipeline.jobs.lineage.run_tables import (
    ATTEMPT_KEYS,
    ATTEMPTS,
    RUN_KEYS,
    RUNS,
    STEP_KEYS,
    STEPS,
    Memory,
    MessageStatus,
    Place,
    remember,
    rows_of,
)
from driftq.pipeline.jobs.stream_options import StreamOptions, in_short, triggered
from driftq.pipeline.jobs.topic_selection import selection_key, source_options
from driftq.pipeline.lake.delta_tables import Lake
from driftq.pipeline.runs.job import JobResult, JobRun, PipelineJob, Progress
from driftq.pipeline.server_connection import AnswerError, Wire, address_of
from driftq.pipeline.source.read_options import api_key_of
from driftq.pipeline.spark.session_internals import is_connect
from driftq.system.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

_COLUMNS = "topic string, seq long, ts timestamp, tag string, data string"
_STATE = "state string"
_CHANGED = "tenant_id string, run_id string, state string"
_ASKED_MAX = 500
"""Maximum number of open runs to ask about at a time while a query runs; the others follow in turn."""


class LineageOptions(StreamOptions, frozen=True, kw_only=True):
    """Options of the job `lineage`."""

    lake: Annotated[str, Meta(description="Directory of the lake; created if it does not exist.")]
    topics: Annotated[tuple[str, ...], Meta(description="Broker topics or patterns.")] = ("@*",)


class KeptState(Protocol):
    """The entry of one agent run (`run_id`) in Spark's state store: the interface of the object that Spark passes."""

    @property
    def exists(self) -> bool:
        """Whether a state was stored before."""
        ...

    @property
    def get(self) -> Any:
        """The stored state, as a row with one text."""
        ...

    def update(self, newValue: Any) -> None:  # noqa: N803
        """Store a new state in place of the old one."""
        ...


def fold_run(key: Any, frames: Iterable[pd.DataFrame], kept: KeptState) -> Iterator[pd.DataFrame]:
    """Fold the records of one run into its state. Spark calls it on executors, for each run of a batch."""
    tenant_id, run_id = str(key[0]), str(key[1])
    before = str(kept.get[0]) if kept.exists else None
    rows: Iterable[Any] = (row for frame in frames for row in frame.itertuples(index=False))
    seen = (
        BrokerRecord(row.topic, row.seq, row.ts_ms, _text(row.tag), row.envelope, _text(row.routing)) for row in rows
    )
    text = dump(fold(load(run_id, tenant_id, before), seen))
    kept.update((text,))
    yield pd.DataFrame({"tenant_id": [tenant_id], "run_id": [run_id], "state": [text]})


def _text(value: Any) -> str | None:
    """Return a text, or None for any of Pandas' missing values."""
    return value if isinstance(value, str) else None


class _Letter(Struct):
    """The server's information about a dead letter."""

    group: str
    routed_at_ms: int


class _Step(Struct):
    """The server's information about a message of a run."""

    topic: str
    offset: int
    groups: list[MessageStatus] = []
    dlq: list[_Letter] = []

    def standings(self) -> list[MessageStatus]:
        """Return the status of the message in each group; for a dead one, with the time of its dead letter."""
        dead = {letter.group: letter.routed_at_ms for letter in self.dlq}
        return [
            structs.replace(one, done_ms=dead.get(one.group)) if one.state == "dead" else one for one in self.groups
        ]


class _Told(Struct):
    steps: list[_Step]


class Lineage:
    """The tables of a lake, and the requests to the server that they need. Used on the driver."""

    def __init__(self, lake: Lake, patient: Wire, hasty: Wire) -> None:
        self._patient = patient
        """Connection that waits for a server that is down."""
        self._hasty = hasty
        """Connection that fails at once if the server is down."""
        self._clock = SystemClock()
        self._runs = lake.table("runs", RUNS)
        self._steps = lake.table("steps", STEPS)
        self._attempts = lake.table("attempts", ATTEMPTS)
        self._turn = ""
        """Name of the last open run that the server was asked about."""
        self._lock = threading.Lock()
        """Batches run in a thread of Spark, so a batch and a request about open runs could change the same run."""

    def take(self, changed: Iterable["Row"]) -> None:
        """Write the runs that a batch has changed."""
        with self._lock:
            self._take(changed)

    def _take(self, changed: Iterable["Row"]) -> None:
        states = {
            (row["tenant_id"], row["run_id"]): load(row["run_id"], row["tenant_id"], row["state"]) for row in changed
        }
        if not states:
            return
        known = self._memories(pc.field("run_id").isin([run_id for _, run_id in states]))
        before = {(one.state.tenant_id, one.state.run_id): one for one in known}
        memories = [Memory(state, before[key].standings if key in before else {}) for key, state in states.items()]
        self._write([self._asked(memory, self._patient) for memory in memories])

    def ask_about_open_runs(self, *, at_most: int | None = None, waits: bool = True) -> int:
        """Ask the server about open runs and write their changes. Returns how many are still open.

        Runs that it did not ask about count as open. With `waits=False`, a server that is down is skipped.
        """
        with self._lock:
            return self._ask(at_most, waits=waits)

    def look(self) -> None:
        """Ask about some open runs while a query runs. Skipped while a batch is written or the server is down.

        The calling thread must be able to notice a stop request, so it must not wait for a batch, which may itself wait
        for the server.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._ask(_ASKED_MAX, waits=False)
            finally:
                self._lock.release()

    def _ask(self, at_most: int | None, *, waits: bool) -> int:
        still = sorted(self._memories(pc.field("open")), key=_name)
        behind = [one for one in still if _name(one) > self._turn]
        before = [one for one in still if _name(one) <= self._turn]
        turn = [*behind, *before][:at_most]
        asked = self._all_asked(turn, waits=waits)
        if not asked:
            return len(still)
        self._turn = _name(turn[-1])
        self._write([fresh for fresh, old in zip(asked, turn, strict=True) if fresh != old])
        return len(still) - sum(not rows_of(one, "").run["open"] for one in asked)

    def _memories(self, where: Any) -> list[Memory]:
        found = self._runs.read(["detail"], where)["detail"].to_pylist()
        return [json.decode(text, type=Memory) for text in found]

    def _all_asked(self, memories: list[Memory], *, waits: bool) -> list[Memory]:
        """Ask about all these runs. Returns nothing if the server is down and `waits` is false."""
        if waits:
            return [self._asked(one, self._patient) for one in memories]
        try:
            return [self._asked(one, self._hasty) for one in memories]
        except AnswerError:
            raise
        except PipelineError:
            return []

    def _asked(self, memory: Memory, wire: Wire) -> Memory:
        return remember(memory, _standings(wire, memory.state.run_id, memory.state.tenant_id), self._clock.wall_ms())

    def _write(self, memories: list[Memory]) -> None:
        if not memories:
            return
        rows = [rows_of(memory, json.encode(memory).decode()) for memory in memories]
        # Runs come last: while a run is open in the table, an interrupted write is repeated.
        attempts = [row for one in rows for row in one.attempts]
        if attempts:
            self._attempts.upsert(_table(attempts, ATTEMPTS), ATTEMPT_KEYS)
        self._steps.upsert(_table([row for one in rows for row in one.steps], STEPS), STEP_KEYS)
        self._runs.upsert(_table([one.run for one in rows], RUNS), RUN_KEYS)


def _standings(wire: Wire, run_id: str, tenant_id: str) -> dict[Place, list[MessageStatus]]:
    """Return the status of each message of a run, or nothing if the server does not know the run."""
    query = f"?tenant_id={quote(tenant_id, safe='')}" if tenant_id else ""
    try:
        answer = wire.get(f"/v1/runs/{quote(run_id, safe='')}{query}")
    except AnswerError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return {}
        raise
    told = convert(answer, _Told)
    return {(broker_topic(step.topic), step.offset): step.standings() for step in told.steps}


def _name(memory: Memory) -> str:
    return f"{memory.state.tenant_id}\n{memory.state.run_id}"


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(rows, schema)


def lineage(run: JobRun, options: LineageOptions) -> JobResult:
    """Update the tables of runs: once, or until a stop is requested."""
    lake = Lake(options.lake)
    name = f"lineage-{selection_key(sorted(options.topics))}"
    checkpoint = Path(run.checkpoint(lake.checkpoint(name)))
    if is_connect(run.spark):
        raise PipelineError(
            "lineage calls the server about runs from the driver, so it does not work with --remote: use --master"
        )
    server, key = address_of(run.server), api_key_of({}, None)
    with Wire(server, key) as patient, Wire(server, key, patience_s=0) as hasty:
        progress, still = _follow(run, options, Lineage(lake, patient, hasty), name, checkpoint)
    facts = {
        "rows": progress.rows,
        "batches": progress.batches,
        "runs": lake.table("runs", RUNS).dataset().count_rows(),
    }
    return JobResult({"lake": str(lake.root), **facts, "open_runs": still})


def _follow(run: JobRun, options: LineageOptions, tables: Lineage, name: str, checkpoint: Path) -> tuple[Progress, int]:
    """Run the query. Returns its progress, and how many runs are open at the end."""
    reader = run.spark.readStream.format("driftq").schema(_COLUMNS).options(**source_options(options.topics))
    rows = reader.options(**options.limits(), startingSeq="earliest", onDataLoss="skip").load()

    def take(changed: "DataFrame", _: int) -> None:
        tables.take(changed.collect())

    writer = _states(rows).writeStream.queryName(name).option("checkpointLocation", str(checkpoint))
    writer = triggered(writer.outputMode("update").foreachBatch(in_short(take)), options)
    query = writer.start()
    progress = run.follow([query], ends=options.once, idle=tables.look)
    # A stop must not wait for a server that is down: the next start asks about the same runs.
    return progress, tables.ask_about_open_runs(waits=not run.stopping())


def _states(rows: "DataFrame") -> "DataFrame":
    """Return the state of every run that has records in the batch."""
    named = rows.selectExpr(
        "topic",
        "seq",
        "unix_millis(ts) AS ts_ms",
        "tag",
        "get_json_object(data, '$.envelope') AS envelope",
        "get_json_object(data, '$.routing') AS routing",
    )
    named = named.selectExpr(
        "*",
        "get_json_object(envelope, '$.run_id') AS run_id",
        "coalesce(get_json_object(envelope, '$.tenant_id'), '') AS tenant_id",
    ).where("run_id IS NOT NULL AND run_id != ''")
    grouped = named.groupBy("tenant_id", "run_id")
    return grouped.applyInPandasWithState(fold_run, _CHANGED, _STATE, "update", "NoTimeout")


LINEAGE: PipelineJob[Any] = PipelineJob(
    "lineage", "Agent runs as tables: runs, steps, attempts.", LineageOptions, lineage
)
