"""`route`: writes the result of a SQL query or Python function over topics into another topic, each row exactly once.

The function or query gets the rows of the source as a streaming DataFrame, and can use state, joins and windows. Each
result row becomes a record: `data` with `tag`, `node` and `meta` if there are such columns, else all columns as one
JSON object. The sink does the rest (`pipeline/sink/data_sink`).
"""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.jobs.stream_options import StreamOptions, triggered
from driftq.pipeline.jobs.topic_selection import selection_key, source_options
from driftq.pipeline.runs.job import JobResult, JobRun, PipelineJob
from driftq.pipeline.runs.run_records import state_directory
from driftq.pipeline.runs.user_code import frame_of, importing_from, told_by_line
from driftq.pipeline.source import read_columns as metas
from driftq.pipeline.spark.session_internals import pickle_by_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Transform = Callable[["DataFrame"], "DataFrame"]
VIEW = "source"


class RouteOptions(StreamOptions, frozen=True, kw_only=True):
    """Options of the job `route`."""

    topics: Annotated[list[str], Meta(description="Topics or patterns to read, for example 'orders,@runs.*'.")]
    to: Annotated[str, Meta(description="Topic to write to; created if it does not exist.")]
    sql: Annotated[str | None, Meta(description=f"SQL query over the view `{VIEW}`.")] = None
    transform: Annotated[
        str | None, Meta(description="FILE.py:FUNCTION or MODULE:FUNCTION that takes a DataFrame and returns one.")
    ] = None
    starting: Annotated[
        str, Meta(description="Where to start: earliest, latest, a seq, or a JSON map of topic to seq.")
    ] = "earliest"
    on_data_loss: Annotated[
        Literal["fail", "skip"], Meta(description="If records were lost before they were read: fail, or skip them.")
    ] = "fail"
    error_topic: Annotated[str | None, Meta(description="Topic for records that the destination refuses.")] = None
    checkpoint: Annotated[
        str | None,
        Meta(
            description="Directory for the position of the route. Default: one per server, selection and destination."
        ),
    ] = None


def run_route(run: JobRun, options: RouteOptions) -> JobResult:
    """Run the route until a stop is requested, or until everything is read."""
    directory = transform_directory(options.transform)
    with nullcontext() if options.transform is None else importing_from(directory):
        with told_by_line(directory):
            transform = transform_of(options)
        rows = _source(run, options)
        with told_by_line(directory):
            made = transform(rows)
        return _routed(run, options, as_records(made))


def _source(run: JobRun, options: RouteOptions) -> "DataFrame":
    """Return the rows to route, without those that the route itself has written."""
    written = [options.to, *filter(None, [options.error_topic])]
    reader = run.spark.readStream.format("driftq").options(**source_options(options.topics, written))
    reader = reader.options(**options.limits()).option("server", run.server)
    return reader.options(startingSeq=options.starting, onDataLoss=options.on_data_loss).load()


def _routed(run: JobRun, options: RouteOptions, rows: "DataFrame") -> JobResult:
    key = selection_key(run.server, source_options(options.topics), options.to)
    path = Path(options.checkpoint) if options.checkpoint else state_directory() / "checkpoints" / f"route-{key}"
    writer = metas.as_text(rows).writeStream.format("driftq").queryName(f"route-{options.to}")
    writer = writer.option("server", run.server).option("topic", options.to)
    writer = writer.option("checkpointLocation", run.checkpoint(path))
    if options.error_topic is not None:
        writer = writer.option("errorTopic", options.error_topic)
    done = run.follow([triggered(writer, options).start()], ends=options.once)
    return JobResult({"topics": options.topics, "to": options.to, "rows": done.rows, "batches": done.batches})


def transform_of(options: RouteOptions) -> Transform:
    """Return the function for the rows. Raises PipelineError unless exactly one of the options is given."""
    if (options.sql is None) == (options.transform is None):
        raise PipelineError("give either --sql or --transform, which defines what happens to the rows")
    if options.transform is not None:
        return _function(options.transform)
    query = options.sql
    assert query is not None

    def select(rows: "DataFrame") -> "DataFrame":
        rows.createOrReplaceTempView(VIEW)
        return rows.sparkSession.sql(query)

    return select


def as_records(rows: "DataFrame") -> "DataFrame":
    """Return rows as the sink needs them: unchanged if they have `data`, else packed into one JSON object."""
    from pyspark.sql import functions as f

    if "data" in rows.columns:
        return rows
    outside = [name for name in ("tag", "node", "meta") if name in rows.columns]
    packed = [name for name in rows.columns if name not in outside]
    if not packed:
        raise PipelineError(
            f"the result has no column `data`, and no column to make it from: only {', '.join(outside)}"
        )
    return rows.select(*outside, f.to_json(f.struct(*packed), {"ignoreNullFields": "false"}).alias("data"))


def _function(place: str) -> Transform:
    module_name, colon, name = place.rpartition(":")
    if not colon or not module_name:
        raise PipelineError(f"--transform {place!r} does not name a function: use FILE.py:FUNCTION or MODULE:FUNCTION")
    found = getattr(_module(module_name), name, None)
    if not callable(found):
        raise PipelineError(f"{module_name} has no function {name!r}")
    return lambda rows: frame_of(found(rows), place)


def transform_directory(place: str | None) -> Path:
    """Return the directory from which a transform can import: that of its file, else the working directory."""
    file = (place or "").rpartition(":")[0]
    return Path(file).resolve().parent if file.endswith(".py") else Path.cwd()


def _module(name: str) -> Any:
    if not name.endswith(".py"):
        if not _can_be_found(name):
            raise PipelineError(
                f"module {name!r} cannot be imported: it is neither installed nor in the working directory"
            )
        return import_module(name)
    path = Path(name).resolve()
    spec = spec_from_file_location(f"driftq_route_{path.stem}", path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise PipelineError(f"there is no file {name}")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    pickle_by_value(module)  # executors do not have the file
    spec.loader.exec_module(module)
    return module


def _can_be_found(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # a parent package is missing, or this is not a module name
        return False


ROUTE = PipelineJob(
    "route", "Apply SQL or Python to topics and write the rows to one topic, exactly once.", RouteOptions, run_route
)
