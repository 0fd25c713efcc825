"""Jobs in the session of the tests: the same launcher as at the command line, with a state directory of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from driftq.pipeline import run_job
from driftq.pipeline.runs.job import JobResult
from driftq.pipeline.runs.launcher import RunSettings

RunJob = Callable[..., JobResult]


def job_runner(server_url: str, state: Path) -> RunJob:
    """Runs a job once, in the session there is."""
    settings = RunSettings(server=server_url, master="local[2,2]", state_dir=str(state))

    def run(name: str, **options: Any) -> JobResult:
        return run_job(name, settings=settings, once=True, **options)

    return run
