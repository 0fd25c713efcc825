"""The data pipeline on Spark: session, source, sink and jobs.

Needs the extra `spark`. Importing this package imports neither Spark nor what stands behind a name before it is asked
for: Spark starts half a dozen Python processes for a query, each of which needs the source and nothing of the jobs.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from driftq.pipeline.cold_topics import read_topic
    from driftq.pipeline.errors import DataLossError, PipelineError
    from driftq.pipeline.jobs.files import step
    from driftq.pipeline.jobs.launch import run_job
    from driftq.pipeline.sessions import register, session, warm

__all__ = ["DataLossError", "PipelineError", "read_topic", "register", "run_job", "session", "step", "warm"]

_PLACES = {
    "DataLossError": "errors",
    "PipelineError": "errors",
    "read_topic": "cold_topics",
    "register": "sessions",
    "run_job": "jobs.launch",
    "session": "sessions",
    "step": "jobs.files",
    "warm": "sessions",
}


def __getattr__(name: str) -> typing.Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    return found
