"""The data pipeline on Spark: session, source, sink and jobs.

Needs the extra `spark`. Importing this package does not import Spark, and each public name is imported on first use.
Spark starts about six Python processes for a query; each of them needs the source, but none of the jobs.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from driftq.pipeline.errors import DataLossError, PipelineError
    from driftq.pipeline.jobs.user_pipeline import step
    from driftq.pipeline.lake_frames import history, read_lake
    from driftq.pipeline.runs.launcher import run_job
    from driftq.pipeline.spark_session import register, session, warm
    from driftq.pipeline.topic_table import read_topic

__all__ = [
    "DataLossError",
    "PipelineError",
    "history",
    "read_lake",
    "read_topic",
    "register",
    "run_job",
    "session",
    "step",
    "warm",
]

_PLACES = {
    "DataLossError": "errors",
    "PipelineError": "errors",
    "history": "lake_frames",
    "read_lake": "lake_frames",
    "read_topic": "topic_table",
    "register": "spark_session",
    "run_job": "runs.launcher",
    "session": "spark_session",
    "step": "jobs.user_pipeline",
    "warm": "spark_session",
}


def __getattr__(name: str) -> typing.Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    return found
