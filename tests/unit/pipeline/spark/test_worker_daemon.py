"""Workers of Spark's daemons end without a word where Spark hangs up on them."""

import socket
import subprocess
import sys
import tempfile
import traceback
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from driftq.pipeline.spark.worker_daemon import HUNG_UP, STREAM_PROCESS, hush, hush_this_process
from tests.support.process import environment


def printed(error: BaseException, capsys: pytest.CaptureFixture[str]) -> str:
    """What a daemon prints of an error that ends one of its workers."""
    forks = SimpleNamespace(traceback=traceback)
    hush(forks)
    with pytest.raises(type(error)):
        _end(error, forks)
    return capsys.readouterr().err


def _end(error: BaseException, forks: Any) -> None:
    try:
        raise error
    except type(error):
        forks.traceback.print_exc()
        raise


@pytest.mark.parametrize("error", HUNG_UP)
def test_nothing_is_printed_of_a_worker_that_spark_has_hung_up_on(
    error: type[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(error(), capsys) == ""


def test_any_other_error_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(MemoryError("none left"), capsys).endswith("MemoryError: none left\n")


def test_a_daemon_is_silent_where_spark_hangs_up_before_a_worker_has_said_its_number() -> None:
    with tempfile.TemporaryDirectory() as place:
        variables = {  # as Spark sets them
            "PYTHON_UNIX_DOMAIN_ENABLED": "true",
            "PYTHON_WORKER_FACTORY_SOCK_DIR": place,
            "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "true",
        }
        running = subprocess.Popen(
            [sys.executable, "-m", "driftq.pipeline.spark.worker_daemon", "pyspark.worker"],
            env=environment(**variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert running.stdout is not None
        path = running.stdout.read(int.from_bytes(running.stdout.read(4)))
        for _ in range(5):
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(path)
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(path)
            assert len(line.recv(4, socket.MSG_WAITALL)) == 4, "the others were forked before"
        assert running.communicate(timeout=60)[1] == b""


@pytest.mark.parametrize(("name", "ours"), [("pyspark.daemon", True), ("tests", False), (None, False)])
def test_only_daemons_of_spark_are_touched(name: str | None, ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {} if name is None else {"__spec__": SimpleNamespace(name=name)}
    program = SimpleNamespace(**spec, traceback=traceback)
    monkeypatch.setitem(sys.modules, "__main__", program)
    hush_this_process()
    assert (program.traceback is not traceback) == ours


def test_the_process_of_a_stream_is_silent_where_spark_hangs_up_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=SimpleNamespace(name=STREAM_PROCESS)))
    assert find_spec(STREAM_PROCESS) is not None
    hush_this_process()
    for error in (BrokenPipeError("gone"), ValueError("wrong")):
        sys.excepthook(type(error), error, None)
    assert capsys.readouterr().err == "ValueError: wrong\n"
