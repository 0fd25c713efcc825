"""Defines a job: a name, typed options, and a function that gets a `JobRun`. Also lists where each job is.

`runs.launcher` starts a job and makes its `JobRun`: the session, the client, progress reports, and stop requests. The
command line and Python start a job in the same way.

Invariant: a job keeps no state outside its checkpoint, its tables and its topics, so it can be killed at any moment and
started again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from msgspec import Struct

from driftq.pipeline.errors import AbsentError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from driftq.client import Client


class Progress(Struct, frozen=True, kw_only=True):
    """How far a run is. Unknown values are None."""

    rows: int = 0
    rows_per_s: float = 0.0
    batches: int = 0
    lag: int | None = None
    """Number of rows that wait to be read."""
    topic_lags: dict[str, int] = {}
    """Number of rows that wait to be read in each topic that has some."""
    total: int | None = None
    """Expected number of rows at the end of the run, if the run has an end."""
    note: str = ""
    """What the run does at the moment, in a few words."""


class JobResult(Struct, frozen=True):
    """Result of a run that ended without an error: facts, and optional tables of rows."""

    facts: dict[str, Any] = {}
    tables: dict[str, list[dict[str, Any]]] = {}


class JobRun(Protocol):
    """The session, the client and the controls that a job gets from the launcher."""

    @property
    def server(self) -> str:
        """URL of the server that the run uses."""
        ...

    @property
    def spark(self) -> "SparkSession":
        """Spark session, created on first use."""
        ...

    @property
    def client(self) -> "Client":
        """Client of the server. Closed when the run ends."""
        ...

    def checkpoint(self, path: Path) -> str:
        """Reserve a checkpoint for this run and return its path. Raises PipelineError while another run has it."""
        ...

    def tell(self, progress: Progress) -> None:
        """Report progress. May be called at any rate."""
        ...

    def stopping(self) -> bool:
        """Whether a stop was requested."""
        ...

    def pause(self, seconds: float) -> bool:
        """Wait, but at most until a stop is requested. Returns whether a stop was requested."""
        ...

    def follow(
        self, queries: Sequence["StreamingQuery"], *, ends: bool, idle: Callable[[], None] | None = None
    ) -> Progress:
        """Wait until the queries end, or stop them when a stop is requested, and report progress meanwhile.

        `ends` is true if the queries end by themselves after reading everything. `idle` is called every 3 s, in this
        thread and not in a thread of a query. Raises PipelineError if a query fails.
        """
        ...


Options = TypeVar("Options", bound=Struct)


@dataclass(frozen=True)
class PipelineJob(Generic[Options]):
    """A job. Every field of `options` is also a command-line flag; the description in its `Meta` is the help text."""

    name: str
    help: str
    options: type[Options]
    run: Callable[[JobRun, Options], JobResult]


PLACES: Mapping[str, str] = {
    "archive": "driftq.pipeline.jobs.archive_job:ARCHIVE",
    "compact": "driftq.pipeline.jobs.lake_jobs:COMPACT",
    "erase": "driftq.pipeline.jobs.lake_jobs:ERASE",
    "lineage": "driftq.pipeline.jobs.lineage.lineage_job:LINEAGE",
    "rollup": "driftq.pipeline.jobs.rollup.rollup_job:ROLLUP_JOB",
    "route": "driftq.pipeline.jobs.route_job:ROUTE",
    "replay": "driftq.pipeline.jobs.replay.replay_job:REPLAY",
    "backfill": "driftq.pipeline.jobs.replay.replay_job:BACKFILL",
    "redrive": "driftq.pipeline.jobs.redrive.redrive_job:REDRIVE",
}
"""Module and attribute of each job. A job is imported on first use."""


def find_job(name: str) -> PipelineJob[Any]:
    """Return the job with a name. Raises AbsentError, with all names, if there is none."""
    place = PLACES.get(name)
    if place is None:
        raise AbsentError(f"there is no job {name!r}: the jobs are {', '.join(PLACES)}, or give a FILE.py of your own")
    module, _, attribute = place.partition(":")
    job = getattr(import_module(module), attribute)
    assert isinstance(job, PipelineJob)
    return job
