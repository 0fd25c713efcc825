"""Pipelines of users: a Python file, with steps that are functions, or plain Structured Streaming code.

    @pipeline.step(source="orders", dest="big-orders")      a stream from topic to topic, exactly once
    def big(rows): return rows.filter("…")

    @pipeline.step                                          any code; queries that it starts are followed
    def report(spark): …

A file without steps is run as it is, with `spark` in it, and the queries that it starts are followed.

Invariant: a query that failed fails the run, also one that has ended before all of the file has run.
"""

import runpy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, overload

from msgspec import Meta, Struct

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.jobs import metas
from driftq.pipeline.jobs.failures import failure_of
from driftq.pipeline.jobs.job import Outcome, Run
from driftq.pipeline.lake.names import directory_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

Function = TypeVar("Function", bound=Callable[..., Any])


class Step(Struct, frozen=True):
    """One step of a file."""

    name: str
    function: Callable[..., Any]
    source: "str | Callable[..., Any] | None" = None
    dest: str | None = None
    options: dict[str, str] = {}


class FileOptions(Struct, frozen=True, kw_only=True):
    """What a pipeline of a user can be told."""

    once: Annotated[bool, Meta(description="Read what there is, then end.")] = False
    interval_s: Annotated[float, Meta(description="Seconds between two batches; 0 is at once.")] = 0.0
    checkpoint: Annotated[
        str | None, Meta(description="Directory that keeps how far each step is; else one beside the file.")
    ] = None


_collected: list[Step] = []


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

    With a `source` it takes a DataFrame and returns one. The source is a topic, some with commas, or another step,
    whose rows it then goes on with; `dest` is the topic that gets the rows, exactly once. `options` are those of the
    source. Without a source it takes the session, and the queries that it starts are followed.
    """

    def keep(wrapped: Function) -> Function:
        called = name or wrapped.__name__
        if dest is not None and source is None:
            raise PipelineError(f"step {called!r} has a dest and no source; say where its rows come from")
        _collected.append(Step(called, wrapped, source, dest, dict(options or {})))
        return wrapped

    return keep if function is None else keep(function)


@contextmanager
def _collecting() -> Iterator[list[Step]]:
    _collected.clear()
    try:
        yield _collected
    finally:
        _collected.clear()


def run_file(run: Run, file: Path, options: FileOptions) -> Outcome:
    """Run a file to its end. Raises PipelineError, or what the file raises."""
    from driftq.pipeline.jobs.started import listening

    if not file.is_file():
        raise PipelineError(f"there is no file {str(file)!r}")
    spark = run.spark
    before = {query.id for query in spark.streams.active}
    with listening(spark) as started:
        with _collecting() as collected:
            runpy.run_path(str(file), init_globals={"spark": spark}, run_name="__main__")
            steps = list(collected)
        _check_names(steps)
        root = Path(options.checkpoint) if options.checkpoint else file.absolute().parent / f".{file.stem}.checkpoints"
        own = [query for one in steps if (query := _start(run, one, steps, root, options)) is not None]
        known = before | {query.id for query in own}
        queries = [*own, *(query for query in spark.streams.active if query.id not in known)]
        failure = started.failure({str(query.id) for query in queries})
    if failure is not None:
        for query in queries:
            query.stop()
        raise failure_of(failure)
    progress = run.follow(queries, ends=options.once)
    return Outcome({"steps": len(steps), "queries": len(queries), "rows": progress.rows, "batches": progress.batches})


def _check_names(steps: list[Step]) -> None:
    names = [one.name for one in steps]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PipelineError(f"two steps are called {twice[0]!r}; give one of them another name")


def _start(run: Run, one: Step, steps: list[Step], root: Path, options: FileOptions) -> "StreamingQuery | None":
    if one.source is None:
        one.function(run.spark)
        return None
    if one.dest is None:
        return None  # it is the source of another one
    rows = metas.as_text(_rows(run, one, steps))
    checkpoint = run.checkpoint(root / directory_name(one.name))
    writer = rows.writeStream.format("driftq").option("topic", one.dest).option("checkpointLocation", checkpoint)
    writer = writer.queryName(one.name)
    if options.once:
        writer = writer.trigger(availableNow=True)
    elif options.interval_s:
        writer = writer.trigger(processingTime=f"{options.interval_s} seconds")
    return writer.start()


def _rows(run: Run, one: Step, steps: list[Step]) -> "DataFrame":
    if isinstance(one.source, str):
        reader = run.spark.readStream.format("driftq").option("topics", one.source)
        rows = reader.options(**{"startingSeq": "earliest", **one.options}).load()
    else:
        before = next((other for other in steps if other.function is one.source), None)
        if before is None or before.source is None:
            raise PipelineError(f"the source of step {one.name!r} is neither a topic nor a step with a source")
        rows = _rows(run, before, steps)
    made: DataFrame = one.function(rows)
    return made
