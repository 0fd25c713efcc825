"""Runs pipelines of users: a Python file with steps, which are functions, or with plain Structured Streaming code.

    @pipeline.step(source="orders", dest="big-orders")      a stream from topic to topic, exactly once
    def big(rows): return rows.filter("…")

    @pipeline.step                                          any code; the run follows the queries that it starts
    def report(spark): …

A file without steps runs as a script with the variable `spark`, and the run follows the queries that it starts.

Invariant: a query that failed makes the run fail, even if it ended before the rest of the file has run.
"""

import runpy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, overload

from msgspec import Meta, Struct

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.jobs.stream_options import StreamOptions, triggered
from driftq.pipeline.lake.table_layout import directory_name
from driftq.pipeline.runs.job import JobResult, JobRun
from driftq.pipeline.runs.user_code import frame_of, importing_from, told_by_line
from driftq.pipeline.source import read_columns as metas
from driftq.pipeline.spark.failures import failure_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

Function = TypeVar("Function", bound=Callable[..., Any])


class PipelineStep(Struct, frozen=True):
    """One step of a file: its function, source, destination and options."""

    name: str
    function: Callable[..., Any]
    source: "str | Callable[..., Any] | None" = None
    dest: str | None = None
    options: dict[str, str] = {}


class FileOptions(StreamOptions, frozen=True, kw_only=True):
    """Options of a pipeline that a user wrote."""

    interval_s: Annotated[
        Annotated[float, Meta(ge=0)], Meta(description="Seconds between two batches; 0 starts the next batch at once.")
    ] = 0.0
    checkpoint: Annotated[
        str | None, Meta(description="Directory for the positions of the steps. Default: one next to the file.")
    ] = None


_collected: list[PipelineStep] = []


@overload
def step(function: Function, /) -> Function: ...


@overload
def step(
    *,
    source: str | Callable[..., Any] | None = None,
    dest: str | None = None,
    name: str | None = None,
    options: dict[str, str] | None = None,
) -> Callable[[Function], Function]: ...


def step(
    function: Function | None = None,
    /,
    *,
    source: str | Callable[..., Any] | None = None,
    dest: str | None = None,
    name: str | None = None,
    options: dict[str, str] | None = None,
) -> Function | Callable[[Function], Function]:
    """Make a function a step of a pipeline.

    With a `source`, the function takes a DataFrame and returns one. The source is a topic, several with commas, or
    another step, whose rows the function gets. `dest` is the topic that gets the rows, exactly once. `options` are
    options of the source. Without a source, the function takes the session, and the run follows the queries that it
    starts.
    """

    def keep(wrapped: Function) -> Function:
        called = name or wrapped.__name__
        if dest is not None and source is None:
            raise PipelineError(f"step {called!r} has a dest but no source; add source=, a topic or another step")
        _collected.append(PipelineStep(called, wrapped, source, dest, dict(options or {})))
        return wrapped

    return keep if function is None else keep(function)


@contextmanager
def _collecting() -> Iterator[list[PipelineStep]]:
    _collected.clear()
    try:
        yield _collected
    finally:
        _collected.clear()


def run_file(run: JobRun, file: Path, options: FileOptions) -> JobResult:
    """Run a file to its end. Raises PipelineError; an error of the file includes its line."""
    if not file.is_file():
        raise PipelineError(f"there is no file {str(file)!r}")
    directory = file.absolute().parent
    with importing_from(directory):
        steps, queries = _started(run, file, options, directory)
        progress = run.follow(queries, ends=options.once)
    return JobResult({"steps": len(steps), "queries": len(queries), "rows": progress.rows, "batches": progress.batches})


def _started(
    run: JobRun, file: Path, options: FileOptions, directory: Path
) -> tuple[list[PipelineStep], list["StreamingQuery"]]:
    """Return the steps of a file and all queries that it started. Raises PipelineError, also if a query has failed."""
    from driftq.pipeline.spark.query_listener import listening

    spark = run.spark
    before = {query.id for query in spark.streams.active}
    root = Path(options.checkpoint) if options.checkpoint else directory / f".{file.stem}.checkpoints"
    with listening(spark) as started, told_by_line(directory):
        with _collecting() as collected:
            runpy.run_path(str(file), init_globals={"spark": spark}, run_name="__main__")
            steps = list(collected)
        check(steps)
        own = [query for one in steps if (query := _start(run, one, steps, root, options)) is not None]
        known = before | {query.id for query in own}
        queries = [*own, *(query for query in spark.streams.active if query.id not in known)]
        failure = started.failure({str(query.id) for query in queries})
    if failure is not None:
        for query in queries:
            query.stop()
        raise failure_of(failure)
    return steps, queries


def check(steps: list[PipelineStep]) -> None:
    """Raise PipelineError, with the name of the step, if a step cannot work."""
    names = [one.name for one in steps]
    for one in steps:
        if names.count(one.name) > 1:
            raise PipelineError(f"two steps are called {one.name!r}; give one of them another name")
        if one.source is None:
            continue
        if one.dest is None and not any(other.source is one.function for other in steps):
            raise PipelineError(f"step {one.name!r} has no dest, and no other step uses its rows: give it a dest")
        if one.dest in _topics(one, steps):
            raise PipelineError(f"step {one.name!r} reads topic {one.dest!r} and writes to it, so it would never end")


def _before(one: PipelineStep, steps: list[PipelineStep]) -> PipelineStep:
    """Return the step whose rows this step gets. Raises PipelineError if there is none."""
    found = next((other for other in steps if other.function is one.source), None)
    if found is None or found.source is None:
        raise PipelineError(f"the source of step {one.name!r} is neither a topic nor a step with a source")
    return found


def _topics(one: PipelineStep, steps: list[PipelineStep]) -> list[str]:
    """Return the topics that the rows of a step originally come from."""
    while not isinstance(one.source, str):
        one = _before(one, steps)
    return [name.strip() for name in one.source.split(",")]


def _start(
    run: JobRun, one: PipelineStep, steps: list[PipelineStep], root: Path, options: FileOptions
) -> "StreamingQuery | None":
    if one.source is None:
        one.function(run.spark)
        return None
    if one.dest is None:
        return None  # it is the source of another step
    rows = metas.as_text(_rows(run, one, steps, options))
    checkpoint = run.checkpoint(root / directory_name(one.name))
    writer = rows.writeStream.format("driftq").option("topic", one.dest).option("checkpointLocation", checkpoint)
    return triggered(writer.queryName(one.name), options).start()


def _rows(run: JobRun, one: PipelineStep, steps: list[PipelineStep], options: FileOptions) -> "DataFrame":
    if isinstance(one.source, str):
        reader = run.spark.readStream.format("driftq").option("topics", one.source)
        rows = reader.options(**{"startingSeq": "earliest", **options.limits(), **one.options}).load()
    else:
        rows = _rows(run, _before(one, steps), steps, options)
    return frame_of(one.function(rows), f"step {one.name!r}")
