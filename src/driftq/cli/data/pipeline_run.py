"""Runs what `driftq pipeline run` was asked to run: in this process, or detached in a process that outlives this one.

On a terminal, a progress bar shows rows, rows per second and lag. With `--json`, progress is printed as one line per
second at most, and the result is the last line.
"""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from driftq.cli.exits import CommandError
from driftq.cli.output import console_of, note, print_line
from driftq.pipeline.jobs.user_pipeline import FileOptions, run_file
from driftq.pipeline.runs.job import JobResult, JobRun, Progress, find_job
from driftq.pipeline.runs.job_options import HelpAskedError, Options, parse_flags
from driftq.pipeline.runs.launcher import RunSettings, launch
from driftq.pipeline.runs.run_records import OPEN, RunRecord, RunRecords
from driftq.pipeline.spark.session_internals import end_active_session

_LINE_MS = 1000
_POLL_S = 0.1


class Call(NamedTuple):
    """The arguments of one `driftq pipeline run`."""

    name: str
    flags: list[str]
    url: str | None
    master: str | None
    remote: str | None
    conf: dict[str, str]
    every_s: float | None

    def arguments(self) -> list[str]:
        """Return the command-line arguments that repeat this call in another process."""
        given = [("--url", self.url), ("--master", self.master), ("--remote", self.remote)]
        given += [("--conf", f"{key}={value}") for key, value in self.conf.items()]
        given += [("--every", None if self.every_s is None else str(self.every_s))]
        own = [part for flag, value in given if value is not None for part in (flag, value)]
        return ["pipeline", "run", self.name, *own, *self.flags]


class _Prepared(NamedTuple):
    options: msgspec.Struct
    body: Callable[[JobRun], JobResult]


def prepare(name: str, flags: list[str], *, again: bool = False) -> _Prepared:
    """Return the job or pipeline file with its parsed options.

    With `again` (`--every`), each run gets `once`, so that it ends by itself. Raise PipelineError, WrongFlagError or
    HelpAskedError.
    """
    if name.endswith(".py"):
        about = "Your own pipeline: functions with @pipeline.step, or plain Structured Streaming code."
        options = _ending(parse_flags(FileOptions, flags, name=name, about=about), again=again)
        return _Prepared(options, lambda run: run_file(run, Path(name), options))
    job = find_job(name)
    chosen = _ending(parse_flags(job.options, flags, name=name, about=job.help), again=again)
    return _Prepared(chosen, lambda run: job.run(run, chosen))


def _ending(options: Options, *, again: bool) -> Options:
    """Set `once` if `again` is set and the options have it; jobs without that option always end by themselves."""
    return structs.replace(options, once=True) if again and hasattr(options, "once") else options


def help_of(name: str) -> str:
    """Return the help text for the flags of a job."""
    try:
        prepare(name, ["--help"])
    except HelpAskedError as asked:
        return str(asked)
    raise AssertionError("--help did not raise HelpAskedError")


def run_here(call: Call, *, as_json: bool) -> dict[str, Any]:
    """Run the pipeline in this process and return how it ended. Raise what the pipeline raises."""
    prepared = prepare(call.name, call.flags, again=call.every_s is not None)
    once = bool(getattr(prepared.options, "once", False))
    settings = RunSettings(
        server=call.url, master=call.master, remote=call.remote, conf=call.conf, short=once and call.every_s is None
    )
    last: list[RunRecord] = []
    outage = outages(call.every_s or 0.0)
    with _watching(as_json=as_json) as told:

        def listen(record: RunRecord) -> None:
            last[:] = [record]
            told(record)
            outage(record)

        try:
            outcome = launch(
                call.name,
                msgspec.to_builtins(prepared.options),
                prepared.body,
                settings=settings,
                listener=listen,
                every_s=call.every_s,
            )
        except BaseException:
            if as_json and last:
                print_line({**_ended(last[0]), "error": last[0].error})
            raise
        finally:
            end_active_session()  # else Spark logs connection errors after this process has exited
    return {**_ended(last[0]), "facts": outcome.facts, "tables": outcome.tables}


def _ended(record: RunRecord) -> dict[str, Any]:
    return {"id": record.id, "pipeline": record.pipeline, "state": record.state}


def outages(every_s: float) -> Callable[[RunRecord], None]:
    """Return a listener that prints when the server becomes unreachable during a run and when it is back."""
    said: str | None = None

    def tell(record: RunRecord) -> None:
        nonlocal said
        if record.state in OPEN and record.error != said:
            said = record.error
            note(f"driftq: {said}; retry in {every_s:g} s" if said else "driftq: the server is back")

    return tell


def run_detached(call: Call) -> RunRecord:
    """Start the pipeline in a new process and return its run record as soon as that process has written it."""
    runs = RunRecords()
    prepare(call.name, call.flags)  # report wrong flags here, not in the log of the new process
    runs.directory.mkdir(parents=True, exist_ok=True)
    log = runs.directory / "detached.log"
    with log.open("ab") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "driftq", *call.arguments()],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    while child.poll() is None:
        found = next((one for one in runs.all() if one.pid == child.pid), None)
        if found is not None:
            return found
        threading.Event().wait(_POLL_S)
    raise CommandError(f"the pipeline process exited with code {child.returncode} before it started; see {log}")


@contextmanager
def _watching(*, as_json: bool) -> Iterator[Callable[[RunRecord], None]]:
    """Yield a listener that shows progress: JSON lines, a bar if stderr is a terminal, else nothing."""
    if as_json:
        yield _lines()
    elif sys.stderr.isatty():
        with _bar() as told:
            yield told
    else:
        yield lambda _: None


def _lines() -> Callable[[RunRecord], None]:
    last_ms = 0
    last = Progress()

    def tell(record: RunRecord) -> None:
        nonlocal last_ms, last
        if record.progress != last and record.updated_ms - last_ms >= _LINE_MS:
            last_ms, last = record.updated_ms, record.progress
            progress = msgspec.to_builtins(record.progress)
            print_line({"id": record.id, "pipeline": record.pipeline, "state": record.state, **progress})

    return tell


@contextmanager
def _bar() -> Iterator[Callable[[RunRecord], None]]:
    from rich import progress as bars

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.TextColumn("{task.completed:,.0f} rows  {task.fields[rate]:,.0f} rows/s  lag {task.fields[lag]}"),
        bars.TimeElapsedColumn(),
    )
    with bars.Progress(*columns, console=console_of(sys.stderr), transient=True) as bar:
        task = bar.add_task("starting Spark", total=None, rate=0.0, lag="-")

        def tell(record: RunRecord) -> None:
            progress = record.progress
            what = Path(record.pipeline).name if record.state == "running" else "starting Spark"
            bar.update(
                task,
                description=f"{what} {progress.note}".rstrip(),
                completed=progress.rows,
                total=progress.total,
                rate=progress.rows_per_s,
                lag="-" if progress.lag is None else f"{progress.lag:,}",
            )

        yield tell
