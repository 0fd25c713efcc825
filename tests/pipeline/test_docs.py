"""Every command block of the pages about the pipeline works as it is written there.

A page of jobs is some ten commands, each of which would start a JVM of its own only to end it. There they find one that
is up already, through the variables that PySpark has for that; each has its own process, session and Python workers.
`test_commands` runs jobs with a JVM of their own.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from driftq.pipeline.spark.jvm import start
from driftq.pipeline.spark_session import defaults
from tests.support.doc_blocks import SPARK_PAGES, run_page
from tests.support.process import serving

ALONE = "docs/pipeline.md"
"""Its blocks are programs with sessions of their own, which end with them."""


@pytest.fixture
def one_jvm(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The variables that lead to a JVM, for one session behind the other."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    gateway = start({**defaults("local[*]"), "spark.master": "local[*]"}, {}, short=True)
    assert gateway.process.stdin is not None
    try:
        yield gateway.variables()
    finally:
        gateway.process.stdin.close()
        gateway.process.wait()


@pytest.mark.parametrize("page", sorted(SPARK_PAGES - {ALONE}))
def test_every_command_of_a_page_of_jobs_works(page: str, tmp_path: Path, one_jvm: dict[str, str]) -> None:
    _works(page, tmp_path, one_jvm)


def test_every_command_of_the_page_about_sessions_works(tmp_path: Path) -> None:
    _works(ALONE, tmp_path, {})


def _works(page: str, directory: Path, variables: dict[str, str]) -> None:
    with serving(directory) as server:
        server.wait_ready()
        room = directory / "room"
        room.mkdir()
        state = {"DRIFTQ_PIPELINE_DIR": str(directory / "runs")}
        wrong = run_page(page, server.address, room, **state, **variables)
    assert not wrong, "\n\n".join(wrong)
