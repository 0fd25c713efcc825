"""One Spark session and one server for all tests here: starting either costs more than most tests.

These tests run in a pytest process of their own, one behind the other (`make test`): Spark has one context per process
and takes both cores for itself.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from driftq.pipeline import session
from tests.pipeline.jobs import RunJob, job_runner
from tests.support.process import ServerProcess, serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server; tests use topics of their own."""
    with serving(tmp_path_factory.mktemp("server")) as process:
        process.wait_ready()
        yield process


@pytest.fixture(scope="session")
def server_url(server: ServerProcess) -> str:
    """Where it is."""
    return f"http://{server.address}"


@pytest.fixture(scope="session")
def spark(server_url: str) -> Iterator["SparkSession"]:
    """The session; a failed task is tried again, as on a cluster."""
    os.environ.pop("DRIFTQ_URL", None)
    made = session(server_url, master="local[2,2]", short=True)
    yield made
    made.stop()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A fresh place for a query's checkpoint."""
    return str(tmp_path / "checkpoint")


@pytest.fixture
def job(spark: "SparkSession", server_url: str, tmp_path: Path) -> RunJob:
    """Runs a job once, in the session there is."""
    return job_runner(server_url, tmp_path / "state")
