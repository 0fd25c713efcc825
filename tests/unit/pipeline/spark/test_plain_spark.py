"""With DRIFTQ_PLAIN_SPARK=1 sessions and Spark's processes are those of stock PySpark."""

import gc
import sys
import threading
import traceback
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark import TaskContext

from driftq.pipeline import PipelineError, session, warm
from driftq.pipeline import spark_session as sessions
from driftq.pipeline.source.cursor_listener import CursorListener
from driftq.pipeline.spark import session_internals as internals
from driftq.pipeline.spark.java import Java
from driftq.pipeline.spark.jvm import daemon_command, spark_home
from driftq.pipeline.spark.plain_spark import is_plain
from driftq.pipeline.spark.worker_daemon import hush_this_process
from driftq.pipeline.spark.worker_memory import settle
from driftq.pipeline.spark_session import defaults


@pytest.fixture
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIFTQ_PLAIN_SPARK", "1")
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, sys.executable)
    for name in ("JAVA_HOME", "SPARK_HOME", "SPARK_LOCAL_IP"):  # so that what a session sets is undone
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.parametrize(("value", "plain"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_one_variable_asks_for_plain_spark(value: str | None, plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRIFTQ_PLAIN_SPARK", raising=False)
    if value is not None:
        monkeypatch.setenv("DRIFTQ_PLAIN_SPARK", value)
    assert is_plain() == plain


def test_any_other_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIFTQ_PLAIN_SPARK", "yes")
    with pytest.raises(PipelineError, match="DRIFTQ_PLAIN_SPARK is 'yes': use 1"):
        is_plain()


@pytest.mark.usefixtures("_plain")
def test_the_conf_of_a_plain_session_has_no_private_name_and_tells_executors() -> None:
    settings = defaults("local[2]")
    private = ("spark.python.daemon", "spark.python.unix", "spark.sql.streaming.checkpointFileManagerClass")
    assert not [key for key, value in settings.items() if key.startswith(private) or "org.apache" in value]
    assert settings["spark.executorEnv.DRIFTQ_PLAIN_SPARK"] == "1"


@pytest.mark.usefixtures("_plain")
def test_a_plain_session_is_made_by_the_builder_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = Mock()
    builder.appName.return_value = builder.config.return_value = builder
    started, registered, hidden = Mock(), Mock(), Mock()
    monkeypatch.setattr(sessions, "ensure_started", started)
    monkeypatch.setattr(sessions, "register", registered)
    monkeypatch.setattr(internals, "hide_repeated_failures", hidden)
    monkeypatch.setattr("pyspark.sql.SparkSession", SimpleNamespace(builder=builder))
    made: Any = session("http://127.0.0.1:1", master="local[2]", api_key="k")
    assert made is builder.getOrCreate.return_value
    assert not started.called
    assert not hidden.called
    registered.assert_called_once_with(made, "http://127.0.0.1:1", api_key="k")
    made.createDataFrame.assert_called_once_with([], "id int")


@pytest.mark.usefixtures("_plain")
def test_there_is_nothing_to_warm() -> None:
    with pytest.raises(PipelineError, match="plain sessions do not use a class-data archive"):
        warm()


@pytest.mark.usefixtures("_plain")
def test_daemons_of_a_cluster_are_started_by_the_script_of_spark() -> None:
    assert daemon_command(Java(spark_home(), 17, bundled=False)) == [str(spark_home() / "bin" / "spark-class")]


@pytest.mark.usefixtures("_plain")
def test_processes_of_spark_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    program = SimpleNamespace(__spec__=SimpleNamespace(name="pyspark.daemon"), traceback=traceback)
    monkeypatch.setitem(sys.modules, "__main__", program)
    monkeypatch.setattr(TaskContext, "get", object)
    gc.unfreeze()
    hush_this_process()
    settle()
    assert program.traceback is traceback
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("_plain")
@pytest.mark.parametrize("kind", ["session", "connect.session"])
def test_the_end_of_a_program_waits_for_queries_that_have_ended(kind: str) -> None:
    """The query that is still running is not waited for. Connect's thread of events is ended."""
    listener = CursorListener(Mock())
    waits = threading.Event()

    def wait(running: Any, timeout_s: float) -> None:
        waits.set()
        assert listener.wait_for_ends(running, timeout_s)
        ended.append("waited")

    ended: list[str] = []
    for run in ("over", "running"):
        listener.onQueryStarted(Mock(runId=run))
    spark: Any = type("SparkSession", (), {"__module__": f"pyspark.sql.{kind}"})()
    spark.streams = Mock(active=[Mock(runId="running")])
    exits = threading.Thread(target=internals.wait_for_events, args=(spark, listener, wait))
    exits.start()
    assert waits.wait(10)
    assert ended == []
    listener.onQueryTerminated(Mock(runId="over"))
    exits.join(10)
    assert ended == ["waited"]
    assert spark.streams.removeListener.called == (kind == "connect.session")


def test_waiting_ends_with_its_timeout() -> None:
    listener = CursorListener(Mock())
    listener.onQueryStarted(Mock(runId="over"))
    assert listener.wait_for_ends(set(), 0) is False
