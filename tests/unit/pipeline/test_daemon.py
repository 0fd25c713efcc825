"""Workers of Spark's daemons end without a word where Spark hangs up on them."""

import socket
import sys
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import daemon

from driftq.pipeline.daemon import HUNG_UP, STREAM_PROCESS, hush, hush_this_process


def hushed(error: BaseException | None) -> Any:
    """The worker of a daemon whose own raises that, or ends well."""

    def work(sock: socket.socket, authenticated: bool) -> int:
        if error is not None:
            raise error
        return 0

    forks = SimpleNamespace(worker=work)
    hush(forks)
    return forks.worker


@pytest.mark.parametrize("error", HUNG_UP)
def test_a_worker_that_spark_has_hung_up_on_ends_with_a_code(error: type[BaseException]) -> None:
    assert hushed(error())(None, True) == 1


def test_a_worker_goes_on_as_ever_where_nothing_is_wrong() -> None:
    assert hushed(None)(None, True) == 0


def test_any_other_error_is_told() -> None:
    with pytest.raises(MemoryError):
        hushed(MemoryError())(None, True)


@pytest.mark.parametrize(("name", "ours"), [("pyspark.daemon", True), ("tests", False), (None, False)])
def test_only_daemons_of_spark_are_touched(name: str | None, ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {} if name is None else {"__spec__": SimpleNamespace(name=name)}
    program = SimpleNamespace(**spec, worker=daemon.worker)
    monkeypatch.setitem(sys.modules, "__main__", program)
    hush_this_process()
    assert (program.worker is not daemon.worker) == ours


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
