"""`driftq demo` and `make run`: from nothing to tables, on a server of its own."""

import signal
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import pytest
from msgspec import json

from tests.support.process import environment
from tests.support.waiting import until

PATIENCE_S = 120.0
RUNS = 12

pytestmark = pytest.mark.slow


def demo(directory: Path, *flags: str, stderr: int | IO[str] = subprocess.PIPE) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "driftq", "demo", "--runs", str(RUNS), "--no-spark"]
    command += ["--data-dir", str(directory / "data"), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=environment(), text=True)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a demo says, as JSON."""
    with demo(tmp_path_factory.mktemp("demo"), "--json") as process:
        said, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")
    return json.decode(said, type=dict[str, Any])


def test_every_run_of_every_tenant_is_played_to_its_end(told: dict[str, Any]) -> None:
    tenants = told["tables"]["tenants"]
    assert [(row["tenant"], row["runs"]) for row in tenants] == [("acme", 4), ("globex", 4), ("initech", 4)]
    # Six steps a run, less what never came of a dead one, and one that was redriven.
    assert sum(row["steps"] for row in tenants) == 6 * RUNS - 2 - 1 + 1
    assert all(row["tokens"] > 0 and row["retries"] > 0 for row in tenants)
    played = told["played"]
    assert played["emails"] == RUNS - 2
    assert (played["handled"], played["given_up"], played["redriven"]) == (6 * RUNS - 5, 1, 1)


def test_poison_ends_among_the_dead_letters_with_its_reason(told: dict[str, Any]) -> None:
    letters = {row["run"].rpartition("-")[2]: row for row in told["tables"]["dead letters"]}
    assert {number: (row["step"], row["attempts"], row["redriven"]) for number, row in letters.items()} == {
        "003": ("search-1", 3, False),
        "005": ("answer", 1, False),
        "007": ("search-1", 3, True),
    }
    assert "DecodeError" in letters["003"]["reason"]
    assert letters["007"]["reason"] == "the browser is down"


def test_the_router_hook_labels_every_message(told: dict[str, Any]) -> None:
    labels = told["tables"]["labels that the router hook gave"]
    assert {row["label"]: row["messages"] for row in labels} == {
        "plan": RUNS,
        "search": 3 * RUNS + 1,
        "answer": RUNS - 1,
        "deliver": RUNS - 2,
    }


def test_the_routers_of_v0_give_each_tenant_its_own_usage(told: dict[str, Any]) -> None:
    records = {row["topic"]: row["records"] for row in told["tables"]["topics"]}
    assert records["usage"] == told["played"]["handled"]
    assert records["usage"] == sum(records[f"usage.{tenant}"] for tenant in ("acme", "globex", "initech"))
    assert records["emails"] == 0


def test_with_serve_the_server_goes_on_with_its_tables_until_it_is_told_to_stop(tmp_path: Path) -> None:
    with (tmp_path / "errors").open("w+") as errors, demo(tmp_path, "--serve", "--port", "0", stderr=errors) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("log "):
                break
        where = next(line.split()[1] for line in lines if line.startswith("server "))
        connection = HTTPConnection(urlsplit(where).netloc, timeout=PATIENCE_S)
        connection.request("GET", "/v0/topics/usage")
        assert connection.getresponse().status == 200
        connection.close()
        until(lambda: (tmp_path / "errors").read_text(), lambda said: "until Ctrl-C" in said)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert any(line.startswith("dead letters") for line in lines)


def test_a_port_that_is_taken_is_said_in_one_line(tmp_path: Path, told: dict[str, Any]) -> None:
    with demo(tmp_path / "first", "--serve", "--port", "0", "--json") as first:
        assert first.stdout is not None
        place = json.decode(first.stdout.readline())["places"]["server"]
        with demo(tmp_path / "second", "--port", str(urlsplit(place).port)) as second:
            said, errors = second.communicate(timeout=PATIENCE_S)
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=PATIENCE_S)
    assert (second.returncode, said) == (1, "")
    assert errors.startswith("driftq: the server did not start: cannot listen on 127.0.0.1:")
    assert errors.count("\n") == 1


def test_a_demo_that_is_interrupted_says_nothing_else(tmp_path: Path) -> None:
    """Its workers have taken the signal for themselves, and finish what they took."""
    command = [sys.executable, "-m", "driftq", "demo", "--data-dir", str(tmp_path / "d"), "--no-spark", "--runs", "400"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # as at a terminal, wherever the tests run
    ) as demo:
        wal = tmp_path / "d" / "wal"
        until(lambda: sum(b"run_id" in path.read_bytes() for path in wal.glob("wal-*.log")), bool)
        demo.send_signal(signal.SIGINT)
        out, err = demo.communicate(timeout=60)
    assert demo.returncode == 130, err
    assert b"worker" not in out + err
