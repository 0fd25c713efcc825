"""The log of a real server, as an operator and a log collector read it."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import environment, serving

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"

pytestmark = pytest.mark.slow


def lines_of(errors: str) -> list[dict[str, Any]]:
    """Every line on standard error as an object; a line that is not JSON fails the test."""
    lines = [json.loads(line) for line in errors.splitlines()]
    for line in lines:
        assert re.fullmatch(TIME, line["time"]), line
        assert {"level", "logger", "message"} <= line.keys(), line
    return lines


def test_a_log_in_json_has_nothing_but_objects(tmp_path: Path) -> None:
    with serving(tmp_path, "--log-format", "json", "--log-level", "debug") as server:
        server.wait_ready()
        server.ask("POST", "/v0/topics/t", {"records": [{"data": 1}]})
        server.ask("POST", "/v0/topics/t", {"records": 1})
        server.process.send_signal(signal.SIGTERM)
        code, errors = server.ended_with_log()
    lines = lines_of(errors)
    assert code == 0
    started = [line["process"] for line in lines if line["message"] == "writer process started"]
    assert sorted(started) == ["driftq-keep-segments", "driftq-write-log"]


def test_a_log_in_text_has_the_same_times(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.wait_ready()
        server.process.send_signal(signal.SIGTERM)
        _, errors = server.ended_with_log()
    assert errors
    for line in errors.splitlines():
        assert re.match(rf"{TIME} (INFO|WARNING|ERROR|CRITICAL) driftq\.[a-z0-9_.]+: ", line), line


def test_the_life_of_a_server_is_in_its_log(tmp_path: Path) -> None:
    for life in range(2):
        with serving(tmp_path, "--log-format", "json", "--wal-shards", "2") as server:
            server.wait_ready()
            address = server.address
            server.ask("POST", "/v0/topics/t", {"records": [{"data": 1}]})
            server.process.send_signal(signal.SIGTERM)
            _, errors = server.ended_with_log()
        found = {line["message"]: line for line in lines_of(errors)}
        order = ["starting", "recovered", "ready", "stopping", "stopped"]
        assert [message for message in found if message in order] == order
        assert found["starting"]["pid"] == server.process.pid
        assert found["starting"]["data_dir"] == str(server.data_dir)
        assert (found["recovered"]["topics"], found["recovered"]["holes"]) == (life, 0)
        assert found["ready"]["address"] == address
        assert found["stopping"]["reason"] == "SIGTERM"
        assert (found["stopped"]["checkpoint"], found["stopped"]["exit_code"]) == (True, 0)
        assert sum(line["message"] == "writer process started" for line in lines_of(errors)) == 3


def test_requests_are_logged_as_the_settings_say(tmp_path: Path) -> None:
    with serving(tmp_path, "--log-format", "json", "--access-log", DRIFTQ_API_KEYS="secret-of-ours") as server:
        server.process.stdout and server.process.stdout.readline()
        for _ in range(3):
            server.ask("GET", "/v0/topics?token=secret-of-ours")
        server.process.send_signal(signal.SIGTERM)
        _, errors = server.ended_with_log()
    assert "secret-of-ours" not in errors
    lines = lines_of(errors)
    access = [line for line in lines if line["logger"] == "driftq.access"]
    assert [(line["path"], line["status"]) for line in access] == [("/v0/topics", 401)] * 3
    failed = [line for line in lines if line["message"] == "authentication failed"]
    assert [line["count"] for line in failed] == [1, 2]  # at once, and what was held back at the end
    assert all(line["peer"].startswith("127.0.0.1:") for line in failed)


def test_a_refused_start_is_a_line_of_json_too(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with serving(tmp_path, "--log-format", "json") as server:
        code, errors = server.ended_with_log()
    last = lines_of(errors)[-1]
    assert (code, last["level"], last["exit_code"]) == (1, "error", 1)
    assert "is not a directory" in last["message"]


@pytest.mark.parametrize(
    ("flags", "variables", "code"),
    [
        (("--port", "70000"), {"DRIFTQ_LOG_FORMAT": "json"}, 2),
        (("--log-format=json", "--nonsense"), {}, 2),
        (("--log-format", "json"), {"DRIFTQ_PORT": "many"}, 1),
        (("--log-format", "json"), {"DRIFTQ_API_KEYS": "secret-of-ours:sing"}, 1),
    ],
)
def test_wrong_settings_are_a_line_of_json_too(
    tmp_path: Path, flags: tuple[str, ...], variables: dict[str, str], code: int
) -> None:
    command = [sys.executable, "-m", "driftq", "serve", "--data-dir", str(tmp_path / "data"), *flags]
    done = subprocess.run(command, capture_output=True, env=environment(**variables), text=True, check=False)
    (line,) = lines_of(done.stderr)
    assert (done.returncode, line["exit_code"]) == (code, code)
    assert "secret-of-ours" not in done.stderr


def test_a_writer_process_that_fails_logs_json(tmp_path: Path) -> None:
    """A writer process is made to fail by a line it cannot understand: it inherits no file that could be damaged."""
    code = (
        "import os, sys\nfrom driftq.cli.server.log_lines import start_log\nstart_log('info', 'json')\n"
        "from driftq.system import writer_process as processes\nprocesses._work = lambda line, bell: 1 / 0\n"
        "process, = processes.fork_writer_processes(1)\nprocess.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        env=environment(),
        text=True,
        check=True,
        cwd=os.fspath(tmp_path),
    )
    (line,) = lines_of(done.stderr)
    assert (line["level"], line["message"]) == ("critical", "a writer process failed")
    assert "ZeroDivisionError" in line["trace"]
