"""`driftq pipeline` as a user runs it: in processes of their own, with Sparks of their own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from driftq.client import Client
from driftq.pipeline.runs.job import Progress
from driftq.pipeline.runs.run_records import OPEN, RunRecords
from tests.support.process import environment
from tests.support.waiting import until

PATIENCE_S = 300.0


class Commands:
    """Commands for one server, with runs of their own."""

    def __init__(self, server_url: str, state: Path) -> None:
        self._environment = environment(DRIFTQ_URL=server_url, DRIFTQ_PIPELINE_DIR=str(state))

    def __call__(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "driftq", "pipeline", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=self._environment
        )

    def json(self, *arguments: str) -> Any:
        """What a command that works tells."""
        done = self(*arguments, "--json")
        assert done.returncode == 0, done
        return json.decode(done.stdout.splitlines()[-1] if arguments[0] == "run" else done.stdout)


@pytest.fixture
def commands(server_url: str, tmp_path: Path) -> Iterator[Commands]:
    yield Commands(server_url, tmp_path / "runs")
    for run in RunRecords(tmp_path / "runs").all():
        if run.state in OPEN:  # a test that failed leaves one in the background
            os.kill(run.pid, signal.SIGKILL)


def test_an_archive_in_the_background_is_followed_refused_twice_and_stopped(
    commands: Commands, server_url: str, tmp_path: Path
) -> None:
    job = ("archive", "--topics", "command-archive", "--lake", str(tmp_path / "lake"))
    with Client(server_url) as client:
        topic = client.topic("command-archive")
        topic.write([{"data": {"n": n}} for n in range(1000)])
        run_id = _begun(commands, *job)["id"]

        def far() -> Progress:
            return RunRecords(tmp_path / "runs").find(run_id).progress

        until(far, lambda found: found.rows == 1000, PATIENCE_S)
        topic.write([{"data": {"n": n}} for n in range(500)])
        until(far, lambda found: (found.rows, found.lag) == (1500, 0), PATIENCE_S)
    shown = commands.json("status", run_id)
    assert (shown["rows"], shown["repeated_batches"]) == (1500, 0)
    (listed,) = commands.json("ls")
    assert (listed["id"], listed["state"], listed["lag"]) == (run_id, "running", 0)
    twice = commands("run", *job, "--once")
    assert (twice.returncode, twice.stderr.count("\n")) == (1, 1)
    assert f"driftq pipeline stop {run_id}" in twice.stderr
    assert commands.json("stop", run_id, "--wait", str(PATIENCE_S))["state"] == "stopped"
    assert commands.json("ls") == []
    verified = commands("verify", "archive", "--lake", str(tmp_path / "lake"))
    assert (verified.returncode, verified.stderr) == (0, "equal\n")


def _begun(commands: Commands, *job: str) -> Any:
    done = commands("run", *job, "--detach", "--json")
    assert done.returncode == 0, done
    return json.decode(done.stdout)


def test_a_run_prints_what_it_did_and_nothing_else(commands: Commands, server_url: str, tmp_path: Path) -> None:
    with Client(server_url) as client:
        client.topic("command-once").write([{"data": {"n": n}} for n in range(1000)])
    lake = str(tmp_path / "lake")
    done = commands("run", "archive", "--topics", "command-once", "--lake", lake, "--once", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    ended = json.decode(done.stdout.splitlines()[-1])
    assert (ended["state"], ended["facts"]["rows"]) == ("done", 1000)
    with Client(server_url) as client:
        client.topic("command-once").append({"n": 1000})
    behind = commands("verify", "archive", "--lake", lake)
    assert behind.returncode == 1
    assert "the lake is 1 records behind: seq 1001" in behind.stdout
    assert behind.stderr.count("\n") == 1


def test_a_pipeline_that_fails_says_why_in_one_line(commands: Commands, server_url: str, tmp_path: Path) -> None:
    with Client(server_url) as client:
        client.topic("command-fails").append({"n": 1})
    file = tmp_path / "fails.py"
    file.write_text(
        "from driftq import pipeline\n"
        "@pipeline.step(source='command-fails', dest='command-failed')\n"
        "def fails(rows):\n"
        "    return rows.selectExpr(\"CAST(raise_error(concat('no ', data)) AS STRING) AS data\")\n",
        encoding="utf-8",
    )
    done = commands("run", str(file), "--once", "--json")
    assert done.returncode == 1
    last = json.decode(done.stdout.splitlines()[-1])
    assert last["state"] == "failed"
    assert done.stderr == f"driftq: {last['error']}\n"
    assert done.stderr.count("\n") == 1
    assert 'no {"n":1}' in done.stderr
    (listed,) = commands.json("ls", "--all")
    assert (listed["state"], listed["pipeline"]) == ("failed", "fails.py")
