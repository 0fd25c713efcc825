"""`driftq pipeline`: run jobs and your own pipelines, show their state, stop them, verify an archive.

Each command imports Spark only if it needs it. `run` accepts its own flags and then those of the job, which are made
from the job's options (`pipeline/runs/job_options`). `driftq pipeline run NAME --help` shows both.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import to_builtins

from driftq.cli.exits import CommandError, ExitCode
from driftq.cli.lazy_groups import group
from driftq.cli.output import Json, note, print_line, show, show_rows
from driftq.cli.server_access import KeyFile, Url, api_key, client_of, connected, server_url, translated
from driftq.system.clock import SystemClock

if TYPE_CHECKING:
    from driftq.pipeline.runs.run_records import RunRecord

pipeline = group("The data pipeline on Spark: run jobs, show their state, stop them.")

_HELP = frozenset(("-h", "--help"))
_POLL_S = 0.2
_STATUS_S = 2.0
_LISTED = ("id", "pipeline", "state", "rows", "rows_per_s", "lag", "batches", "started_ts", "ended_ts", "error")

AnyUrl = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="Accepted as for other commands; a run knows its server.")
]
Master = Annotated[str | None, typer.Option(metavar="URL", help="Spark master. Default: local[*], this machine.")]
Remote = Annotated[str | None, typer.Option(metavar="URL", help="Spark Connect server, for example sc://host:15002.")]


def need_spark() -> None:
    """Raise CommandError if the packages of the extra `spark` are not installed."""
    absent = [name for name in ("pyspark", "deltalake", "pandas") if find_spec(name) is None]
    if absent:
        raise CommandError(f"the data pipeline needs {absent[0]}; install it with `pip install 'driftq[spark]'`")


@pipeline.command(
    "run",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    options_metavar="[flags]",
)
def run(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME|FILE.py", help="Name of a job, or your own pipeline file.")
    ] = None,
    *,
    master: Master = None,
    remote: Remote = None,
    conf: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Spark setting; may be repeated.")] = None,
    every: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0.1, help="Repeat the job every SECONDS.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Run in the background; print the id of the run.")] = False,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Run a job, or your own pipeline, until it ends or is stopped."""
    if name is None or name in _HELP or _HELP & set(context.args):
        _tell_help(context, name)
        return
    if name.startswith("-"):
        raise CommandError(f"name the pipeline before {name}; see driftq pipeline run --help", ExitCode.USAGE)
    need_spark()
    key = api_key(key_file)
    if key is not None:
        os.environ["DRIFTQ_API_KEY"] = key  # the source and the sink read the key from there
    from driftq.cli.data.pipeline_run import Call, run_detached, run_here

    call = Call(name, list(context.args), server_url(url), master, remote, _settings(conf), every)
    with _refusals(call.url):
        if detach:
            _say_run(run_detached(call), as_json=as_json)
        else:
            _show_end(run_here(call, as_json=as_json), as_json=as_json)


@contextmanager
def _refusals(url: str | None = None) -> Iterator[None]:
    """Turn errors of the pipeline and of the client into a CommandError with the matching exit code."""
    from driftq.client import ClientError
    from driftq.pipeline.errors import AbsentError, DeniedError, PipelineError, UnreachableError
    from driftq.pipeline.runs.job_options import WrongFlagError

    codes: dict[type[PipelineError], ExitCode] = {
        WrongFlagError: ExitCode.USAGE,
        AbsentError: ExitCode.ABSENT,
        DeniedError: ExitCode.DENIED,
        UnreachableError: ExitCode.UNREACHABLE,
    }
    try:
        yield
    except PipelineError as error:
        code = next((code for kind, code in codes.items() if isinstance(error, kind)), ExitCode.FAILED)
        raise CommandError(error.message, code) from None
    except ClientError as error:
        raise translated(error, url or "the server") from None


def _show_end(ended: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_line(ended)
        return
    show({field: ended[field] for field in ("id", "pipeline", "state")} | ended["facts"], as_json=False)
    for title, rows in ended["tables"].items():
        sys.stdout.write(f"\n{title}\n")
        show_rows(rows, as_json=False)


def _settings(conf: list[str] | None) -> dict[str, str]:
    pairs = [one.partition("=") for one in conf or ()]
    wrong = next((key for key, equals, _ in pairs if not (key and equals)), None)
    if wrong is not None:
        raise CommandError(f"--conf {wrong} is not KEY=VALUE", ExitCode.USAGE)
    return {key: value for key, _, value in pairs}


def _tell_help(context: typer.Context, name: str | None) -> None:
    typer.echo(context.get_help())
    if name is None or name in _HELP:
        from driftq.pipeline.runs.job import PLACES

        typer.echo(f"\nJobs: {', '.join(PLACES)}. `driftq pipeline run NAME --help` shows the flags of a job.")
        return
    need_spark()
    from driftq.cli.data.pipeline_run import help_of

    with _refusals():
        typer.echo(f"\n{help_of(name)}")


@pipeline.command("ls")
def list_runs(
    *,
    everything: Annotated[bool, typer.Option("--all", help="Show runs that have ended, too.")] = False,
    as_json: Json = False,
) -> None:
    """List the pipelines that run on this machine."""
    from driftq.pipeline.runs.run_records import OPEN, RunRecords

    show_rows([_row(one) for one in RunRecords().all() if everything or one.state in OPEN], _LISTED, as_json=as_json)


@pipeline.command("status")
def status(
    wanted: Annotated[str, typer.Argument(metavar="RUN", help="The id of a run, or the name of its pipeline.")],
    *,
    url: AnyUrl = None,
    as_json: Json = False,
) -> None:
    """Show the state and progress of a run."""
    from driftq.pipeline.runs.run_records import RunRecords

    with _refusals():
        record = RunRecords().find(wanted)
    _say_run(record, as_json=as_json, repeated_batches=_repeated_batches(record.server))


def _repeated_batches(server: str) -> int | None:
    """Return how many batches of all writers the server has got again since its start, or None if it is away."""
    from driftq.client import ClientError

    try:
        with client_of(server, None, timeout=_STATUS_S, retries=0) as client:
            found: int | None = client.metrics().get("repeated_commits")
    except (ClientError, CommandError):
        return None
    return found


@pipeline.command("stop")
def stop(
    wanted: Annotated[str, typer.Argument(metavar="RUN", help="The id of a run, or the name of its pipeline.")],
    *,
    wait: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="How long to wait until it has ended.")] = 60.0,
    url: AnyUrl = None,
    as_json: Json = False,
) -> None:
    """Stop a run after its current batch."""
    from driftq.pipeline.runs.run_records import OPEN, RunRecords

    runs = RunRecords()
    with _refusals():
        record = runs.find(wanted)
    if record.state in OPEN:
        runs.ask_to_stop(record)
    clock = SystemClock()
    until = clock.monotonic_ns() + int(wait * 1e9)
    while record.state in OPEN and clock.monotonic_ns() < until:
        threading.Event().wait(_POLL_S)
        record = runs.find(record.id)
    _say_run(record, as_json=as_json)
    if record.state in OPEN:
        raise CommandError(f"run {record.id} was asked to stop and is still running, in process {record.pid}")


@pipeline.command("verify")
def verify(
    what: Annotated[str, typer.Argument(metavar="archive", help="What to verify.")],
    *,
    lake: Annotated[str, typer.Option(metavar="DIRECTORY", help="Directory of the lake.")],
    topics: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Topics, separated by commas. Default: all topics of the lake.")
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Compare every value, and name the columns that differ.")
    ] = False,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Compare an archive with what was written to it and with its topics, and print `equal` or the differences."""
    if what != "archive":
        raise CommandError(f"{what!r} cannot be verified; use `driftq pipeline verify archive`", ExitCode.USAGE)
    need_spark()
    from driftq.pipeline.lake.archive_check import verify as compare
    from driftq.pipeline.lake.delta_tables import Lake
    from driftq.pipeline.lake.server_topics import ServerTopics

    with connected(url, key_file) as client:
        wanted = [name for name in topics.split(",") if name] if topics is not None else None
        findings = compare(Lake(lake), ServerTopics(client), wanted, deep=deep)
    if not findings:
        raise CommandError(f"there is no archive in {lake}; `driftq pipeline run archive` makes one", ExitCode.ABSENT)
    show_rows([to_builtins(finding) for finding in findings], as_json=as_json)
    differing = [finding.topic for finding in findings if finding.verdict != "equal"]
    if differing:
        raise CommandError(f"{len(differing)} of {len(findings)} topics differ: {', '.join(differing[:5])}")
    if not as_json:
        note("equal")


@pipeline.command("warm")
def warm(*, as_json: Json = False) -> None:
    """Prepare this machine so that later Spark sessions start faster. Needed once per machine."""
    need_spark()
    from driftq.pipeline import warm as record

    show({"class_archive": str(record())}, as_json=as_json)


cluster = group("A real Spark cluster on this machine, for trying things.")
pipeline.add_typer(cluster, name="cluster", help="A real Spark cluster on this machine, for trying things.")

Directory = Annotated[
    Path | None,
    typer.Option(metavar="DIRECTORY", help="Directory for its logs and files. Default: one in the user's cache."),
]


@cluster.command("up")
def cluster_up(
    *,
    workers: Annotated[int, typer.Option(min=1, help="Number of workers.")] = 2,
    cores: Annotated[int, typer.Option(min=1, help="Cores of each worker.")] = 1,
    memory: Annotated[str, typer.Option(help="Memory of each worker, in Spark's notation.")] = "1536m",
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Start a Spark master and workers. Pass the printed address to `driftq pipeline run --master`."""
    need_spark()
    from driftq.pipeline.spark.cluster import up

    show(up(workers, cores=cores, memory=memory, directory=directory)._asdict(), as_json=as_json)


@cluster.command("down")
def cluster_down(*, directory: Directory = None, as_json: Json = False) -> None:
    """Stop the cluster that `up` started."""
    need_spark()
    from driftq.pipeline.spark.cluster import directory_or_default, down

    if not down(directory):
        where = directory_or_default(directory)
        raise CommandError(f"no cluster runs in {where}; give the --directory of `cluster up`", ExitCode.ABSENT)
    show({"ended": True}, as_json=as_json)


def _row(record: "RunRecord") -> dict[str, Any]:
    progress = record.progress
    return {
        "id": record.id,
        "pipeline": Path(record.pipeline).name,
        "state": record.state,
        "rows": progress.rows,
        "rows_per_s": progress.rows_per_s,
        "lag": progress.lag,
        "batches": progress.batches,
        "started_ts": record.started_ms,
        "ended_ts": record.ended_ms,
        "error": record.error,
    }


def _say_run(record: "RunRecord", *, as_json: bool, **facts: Any) -> None:
    more: dict[str, Any] = {"topic_lags": record.progress.topic_lags, "server": record.server, "pid": record.pid}
    more |= {"options": record.options, "checkpoints": record.checkpoints, **facts}
    show({**_row(record), **more}, as_json=as_json)
