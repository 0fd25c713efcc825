"""How `driftq pipeline run` runs something: here, with a bar, or in a process of its own that outlives this one.

On a terminal a bar shows rows, rows per second and lag. With `--json` every second of progress is a line, and the end
is the last one.
"""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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

_LINE_MS = 1000
_POLL_S = 0.1


class Call(NamedTuple):
    """What was asked for."""

    name: str
    flags: list[str]
    url: str | None
    master: str | None
    remote: str | None
    conf: dict[str, str]
    every_s: float | None

    def arguments(self) -> list[str]:
        """The same as arguments of the command line."""
        given = [("--url", self.url), ("--master", self.master), ("--remote", self.remote)]
        given += [("--conf", f"{key}={value}") for key, value in self.conf.items()]
        given += [("--every", None if self.every_s is None else str(self.every_s))]
        own = [part for flag, value in given if value is not None for part in (flag, value)]
        return ["pipeline", "run", self.name, *own, *self.flags]


class _Prepared(NamedTuple):
    options: msgspec.Struct
    body: Callable[[JobRun], JobResult]


def prepare(name: str, flags: list[str], *, again: bool = False) -> _Prepared:
    """A job or a file with its options; what is run again and again ends by itself each time.

    Raises PipelineError, WrongFlagError or HelpAskedError.
    """
    if name.endswith(".py"):
        about = "A pipeline of yours: functions with @pipeline.step, or plain Structured Streaming code."
        options = _ending(parse_flags(FileOptions, flags, name=name, about=about), again=again)
        return _Prepared(options, lambda run: run_file(run, Path(name), options))
    job = find_job(name)
    chosen = _ending(parse_flags(job.options, flags, name=name, about=job.help), again=again)
    return _Prepared(chosen, lambda run: job.run(run, chosen))


def _ending(options: Options, *, again: bool) -> Options:
    """With `once`, where there is such an option: the other jobs end by themselves anyway."""
    return structs.replace(options, once=True) if again and hasattr(options, "once") else options


def help_of(name: str) -> str:
    """The flags of a job."""
    try:
        prepare(name, ["--help"])
    except HelpAskedError as asked:
        return str(asked)
    raise AssertionError("who asks for help gets it")


def run_here(call: Call, *, as_json: bool) -> dict[str, Any]:
    """Run it in this process; how it ended. Raises what the pipeline raises."""
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
            end_session()
    return {**_ended(last[0]), "facts": outcome.facts, "tables": outcome.tables}


def _ended(record: RunRecord) -> dict[str, Any]:
    return {"id": record.id, "pipeline": record.pipeline, "state": record.state}


def outages(every_s: float) -> Callable[[RunRecord], None]:
    """Says when the server is away from a run that goes on."""
    said: str | None = None

    def tell(record: RunRecord) -> None:
        nonlocal said
        if record.state in OPEN and record.error != said:
            said = record.error
            note(f"driftq: {said}; again in {every_s:g} s" if said else "driftq: the server is back")

    return tell


def end_session() -> None:
    """End the session, if there is one: a process that just goes leaves Spark talking to nobody, and it says so."""
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession

    with suppress(Py4JError, OSError):  # a JVM that is gone has ended the session, and what ended it is told already
        session = SparkSession.getActiveSession()
        if session is not None:
            session.stop()


def run_detached(call: Call) -> RunRecord:
    """Run it in a process of its own; its record, once it has written one."""
    runs = RunRecords()
    prepare(call.name, call.flags)  # what is wrong is said here, where somebody reads it
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
    raise CommandError(f"it ended with code {child.returncode} before it began; {log} has its words")


@contextmanager
def _watching(*, as_json: bool) -> Iterator[Callable[[RunRecord], None]]:
    """Shows progress: lines of JSON, a bar where there is a terminal, else nothing."""
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
