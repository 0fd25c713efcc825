"""The conf of a session, by its master."""

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, PathDistribution
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from driftq.pipeline import PipelineError, read_topic, session
from driftq.pipeline import spark_session as sessions
from driftq.pipeline import topic_table as cold_topics
from driftq.pipeline.source import cursor_listener as progress
from driftq.pipeline.spark_session import defaults
from tests.support.process import environment


@pytest.mark.parametrize(
    ("master", "partitions"), [("local[3]", "3"), ("local", "1"), ("local[2,4]", "2"), ("local-cluster[2,3,1024]", "6")]
)
def test_a_local_session_shuffles_into_as_many_partitions_as_it_has_cores(master: str, partitions: str) -> None:
    assert defaults(master)["spark.sql.shuffle.partitions"] == partitions


def test_a_session_refuses_the_setting_that_carries_filters_from_query_to_query() -> None:
    with pytest.raises(PipelineError, match=r"filterPushdown.enabled=true is refused.*register"):
        session(conf={"spark.sql.python.filterPushdown.enabled": "true"})


def test_a_cluster_on_another_host_is_not_told_to_call_back_to_this_loopback() -> None:
    assert "spark.driver.host" not in defaults("spark://far:7077")
    assert defaults("spark://127.0.0.1:7077")["spark.driver.host"] == "127.0.0.1"
    assert defaults("local[*]")["spark.driver.host"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("master", "python", "ours"),
    [("local[2]", sys.executable, True), ("local[2]", "/other/python", False), ("spark://127.0.0.1:7077", "", False)],
)
def test_python_processes_of_this_machine_are_started_our_way(
    master: str, python: str, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere, and with another Python, nothing of ours may be installed."""
    monkeypatch.setenv("PYSPARK_PYTHON", python or sys.executable)
    settings = defaults(master)
    assert ("spark.python.daemon.module" in settings) == ours
    assert ("spark.python.unix.domain.socket.enabled" in settings) == ours


def test_a_jvm_of_another_process_has_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the sockets of its first session, and this process is not the one that it ends with."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert "spark.python.unix.domain.socket.enabled" not in defaults("local[2]")


def test_a_python_without_the_package_has_no_daemon_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setattr("importlib.metadata.distribution", Mock(side_effect=PackageNotFoundError))
    assert "spark.python.daemon.module" not in defaults("local[2]")
    monkeypatch.setattr(
        "importlib.metadata.distribution", Mock(return_value=PathDistribution(tmp_path / "driftq.dist-info"))
    )
    assert "spark.python.daemon.module" not in defaults("local[2]")


def test_a_package_that_a_user_has_installed_for_themselves_is_found_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setattr(
        "importlib.metadata.distribution", Mock(return_value=PathDistribution(tmp_path / "driftq.dist-info"))
    )
    monkeypatch.setattr("site.getusersitepackages", lambda: str(tmp_path))
    monkeypatch.setattr("site.ENABLE_USER_SITE", True)
    assert "spark.python.daemon.module" in defaults("local[2]")
    monkeypatch.setattr("site.ENABLE_USER_SITE", False)
    assert "spark.python.daemon.module" not in defaults("local[2]")


def test_a_session_is_local_or_remote() -> None:
    with pytest.raises(PipelineError, match="master or remote, not both"):
        session(master="local[1]", remote="sc://127.0.0.1")


@pytest.mark.parametrize(("remote", "python"), [("local[2]", sys.executable), ("sc://far:15002", None)])
def test_a_connect_server_of_this_machine_runs_this_python(
    remote: str, python: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr("pyspark.sql.SparkSession", SimpleNamespace(builder=Mock()))
    sessions._remote(remote, None)
    assert os.environ.get("PYSPARK_PYTHON") == python


def test_a_python_process_of_spark_imports_the_source_without_the_jobs() -> None:
    """Spark starts half a dozen of them for a query."""
    code = "import sys, pyspark_driftq; print(sorted({'httpx', 'driftq.pipeline.jobs', 'pandas'} & set(sys.modules)))"
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.stdout, ran.stderr) == ("[]\n", "")


class _Asked(Exception):  # noqa: N818  # an answer, not an error
    pass


def test_read_topic_asks_with_the_key_that_the_session_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks the server itself, in the process of the user; the environment of the JVM is not its own."""
    monkeypatch.setattr(progress, "listen", Mock())
    spark: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda *_: None), streams=Mock())
    sessions._listen(spark, "http://127.0.0.1:1", "key of the session")

    def wire(server: str, api_key: str | None) -> None:
        raise _Asked(api_key)

    monkeypatch.setattr(cold_topics, "Wire", wire)
    with pytest.raises(_Asked, match="key of the session"):
        read_topic(spark, "t")
    with pytest.raises(_Asked, match="key of the read"):
        read_topic(spark, "t", apiKey="key of the read")
