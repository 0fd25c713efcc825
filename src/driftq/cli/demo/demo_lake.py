"""Runs the data pipeline over the demo's topics: archive and lineage on Spark, then a comparison with the server.

Needs the extra `spark`; `missing` names the package that is not installed.
"""

import contextlib
import io
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from driftq.cli.demo.demo_tables import TOPICS, Rows, Tables
from driftq.client import Client

if TYPE_CHECKING:
    from driftq.pipeline.lake.delta_tables import Lake

_RUNS_SHOWN = 5
_RUN_FIELDS = ("tenant_id", "run_id", "status", "steps", "attempts", "retries", "dead_steps", "critical_path")


def missing() -> str | None:
    """Return the name of a package that must be installed first, or None."""
    return next((name for name in ("pyspark", "deltalake", "pandas") if find_spec(name) is None), None)


def run_pipeline(url: str, lake: Path, tell: Callable[[str], None]) -> Tables:
    """Archive all topics, trace all runs and compare the archive with the server. Raise PipelineError."""
    from driftq.pipeline.lake.archive_check import verify
    from driftq.pipeline.lake.delta_tables import Lake
    from driftq.pipeline.lake.server_topics import ServerTopics
    from driftq.pipeline.runs.launcher import RunSettings, run_job

    settings = RunSettings(server=url, short=True, state_dir=str(lake / "_pipelines"))
    tell("Spark archives the topics")
    archived = run_job("archive", settings=settings, topics=list(TOPICS), lake=str(lake), once=True)
    tell("Spark traces the runs")
    run_job("lineage", settings=settings, lake=str(lake), once=True)
    tell("the archive is compared with the server")
    with Client(url) as client:
        found = verify(Lake(lake), ServerTopics(client))
    return {
        "archived by Spark": [archived.facts],
        "runs that Spark traced, the most eventful first": _eventful(Lake(lake)),
        "archive and server": [
            {"topic": one.topic, "verdict": one.verdict, "lake_rows": one.lake_rows, "live_rows": one.live_rows}
            for one in found
        ],
    }


def stop_spark() -> None:
    """Stop the Spark session, if there is one, and discard what it prints."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is not None:
        with contextlib.redirect_stdout(io.StringIO()):
            session.stop()


def _eventful(lake: "Lake") -> Rows:
    from driftq.pipeline.jobs.lineage.run_tables import RUNS

    rows: Rows = lake.table("runs", RUNS).read(list(_RUN_FIELDS)).to_pylist()
    rows.sort(key=lambda row: (row["attempts"], row["run_id"]), reverse=True)
    return rows[:_RUNS_SHOWN]
