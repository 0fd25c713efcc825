"""What a job is: a name, typed options, and a function that is given a `JobRun`. And where to find each one.

A job is started by `jobs.launch`, which makes the `JobRun`: the session, the client, what is told while it works, and
whether somebody asked it to stop. The command line and Python start it the same way.

Invariant: a job keeps nothing outside its checkpoint, its tables and its topics, so it can be killed at any moment and
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
    """How far a run is. What is not known is None."""

    rows: int = 0
    rows_per_s: float = 0.0
    batches: int = 0
    lag: int | None = None
    """Rows that wait to be read."""
    total: int | None = None
    """Rows that there will have been in all, where the run has an end."""
    note: str = ""
    """What it does at this moment, in a few words."""


class JobResult(Struct, frozen=True):
    """What a run that ended well has to say: facts, and maybe tables of rows."""

    facts: dict[str, Any] = {}
    tables: dict[str, list[dict[str, Any]]] = {}


class JobRun(Protocol):
    """What a job is given to work with."""

    @property
    def server(self) -> str:
        """The address of the server."""
        ...

    @property
    def spark(self) -> "SparkSession":
        """The session; made when it is first asked for."""
        ...

    @property
    def client(self) -> "Client":
        """A client of the server; closed when the run ends."""
        ...

    def checkpoint(self, path: Path) -> str:
        """Take a checkpoint for this run alone. Raises PipelineError while another run has it."""
        ...

    def tell(self, progress: Progress) -> None:
        """Say how far it is; as often as one likes."""
        ...

    def stopping(self) -> bool:
        """Has somebody asked to stop?"""
        ...

    def pause(self, seconds: float) -> bool:
        """Wait, and be woken by a stop; the answer of `stopping`."""
        ...

    def follow(
        self, queries: Sequence["StreamingQuery"], *, ends: bool, idle: Callable[[], None] | None = None
    ) -> Progress:
        """Stay with queries until they end, or stop them when asked to, and say how far they are all the while.

        `ends` says that they stop by themselves when they have read all; `idle` is called every few seconds, here and
        not in a thread of the query. Raises PipelineError where one fails.
        """
        ...


Options = TypeVar("Options", bound=Struct)


@dataclass(frozen=True)
class PipelineJob(Generic[Options]):
    """A job. Every field of `options` is a flag of the command line too; its `Meta` description is the help."""

    name: str
    help: str
    options: type[Options]
    run: Callable[[JobRun, Options], JobResult]


PLACES: Mapping[str, str] = {
    "archive": "driftq.pipeline.jobs.archive_job:ARCHIVE",
    "lineage": "driftq.pipeline.jobs.lineage.lineage_job:LINEAGE",
    "rollup": "driftq.pipeline.jobs.rollup.rollup_job:ROLLUP_JOB",
    "route": "driftq.pipeline.jobs.route_job:ROUTE",
    "replay": "driftq.pipeline.jobs.replay.replay_job:REPLAY",
    "backfill": "driftq.pipeline.jobs.replay.replay_job:BACKFILL",
    "redrive": "driftq.pipeline.jobs.redrive.redrive_job:REDRIVE",
}
"""Where each job is; a job is imported when it is asked for."""


def find_job(name: str) -> PipelineJob[Any]:
    """The job of a name. Raises AbsentError, with all names there are."""
    place = PLACES.get(name)
    if place is None:
        raise AbsentError(f"there is no job {name!r}; there are {', '.join(PLACES)}, and any FILE.py of yours")
    module, _, attribute = place.partition(":")
    job = getattr(import_module(module), attribute)
    assert isinstance(job, PipelineJob)
    return job
