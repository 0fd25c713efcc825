"""`driftq import driftq-core` as a process: into a fresh directory, into one that is in use, and from no such file."""

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import json

from tests.support.process import PATIENCE_S, environment, serving
from tests.unit.offline.driftq_core.test_core_log import line

pytestmark = pytest.mark.slow


def _import(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "driftq", "import", "driftq-core", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=PATIENCE_S, check=False)


def test_a_log_is_imported_once_and_served(tmp_path: Path) -> None:
    log, data = tmp_path / "driftq.wal", tmp_path / "data"
    log.write_bytes(b"".join(line(1, offset=n, value=b"v") for n in range(3)) + line(2, group="g", offset=1))
    done = _import(log, "--data-dir", data, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.decode(done.stdout) == {"topics": 1, "messages": 3, "groups": 1, "failures": 0, "outcomes": 0}
    again = _import(log, "--data-dir", data)
    assert again.returncode == 1
    assert "already exists" in again.stderr
    with serving(tmp_path, data_dir=str(data)) as server:
        server.wait_ready()
        status, body = server.ask("GET", "/v1/groups?topic=t&group=g")
        assert (status, body["groups"][0]["partitions"][0]["floor"]) == (200, 1)
        in_use = _import(log, "--data-dir", data)
        assert in_use.returncode == 1
        assert "in use" in in_use.stderr


def test_a_file_that_is_not_there_makes_no_directory(tmp_path: Path) -> None:
    done = _import(tmp_path / "nothing", "--data-dir", tmp_path / "data")
    assert done.returncode == 1
    assert "cannot be read" in done.stderr
    assert not (tmp_path / "data").exists()
