"""`driftq doctor` on real servers, well and not well."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.test_writer_processes import LOG, writer_processes
from tests.support.process import ServerProcess, environment, serving
from tests.support.waiting import until

pytestmark = pytest.mark.slow


def doctor(server: ServerProcess, *flags: str, **variables: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the findings by check."""
    command = [sys.executable, "-m", "driftq", "doctor", "--url", f"http://{server.address}", "--json", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(**variables))
    rows = json.loads(done.stdout)
    assert all(row["advice"] for row in rows if row["status"] != "ok"), "what is not ok says what to do next"
    return done.returncode, {row["check"]: row for row in rows}


def test_a_server_that_is_well_passes_and_its_own_directory_is_checked(tmp_path: Path) -> None:
    with serving(tmp_path, "--backup-dir", str(tmp_path / "backups")) as server:
        server.wait_ready()
        code, found = doctor(server)
        assert code == 0
        names = ("server", "log writer", "segments writer", "writes", "holes", "key", "checkpoint", "server clock")
        assert {found[name]["status"] for name in names} == {"ok"}
        assert found["disk space"]["found"].endswith(str(server.data_dir))
        assert found["backup"]["status"] == "warn"
        assert server.ask("POST", "/v0/backups", {})[0] in (200, 201, 202)
        until(lambda: doctor(server)[1]["backup"]["status"], lambda status: status == "ok")


def test_a_stopped_log_fails_and_says_what_to_do(tmp_path: Path) -> None:
    """row: F-DOCTOR-1"""
    with serving(tmp_path, "--wal-stop-grace-ms", "60000") as server:
        server.wait_ready()
        os.kill(writer_processes(server)[LOG], signal.SIGKILL)
        until(lambda: server.get("/v0/ready")[0], lambda status: status == 503)
        code, found = doctor(server)
        assert (code, found["log writer"]["status"]) == (1, "fail")
        assert "restart the server" in found["log writer"]["advice"]


def test_a_writer_that_hangs_fails(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.wait_ready()
        server.ask("POST", "/v0/topics/t", {"records": [{"data": 1}]})
        pid = writer_processes(server)[LOG]
        os.kill(pid, signal.SIGSTOP)
        try:
            server.ask("POST", "/v0/topics/t", {"records": [{"data": 2}]})
            until(lambda: server.get("/v0/ready")[1].get("writers"), bool)
            code, found = doctor(server)
            assert (code, found["log writer"]["status"]) == (1, "fail")
            assert found["log writer"]["found"].startswith("hung for ")
            assert "disk" in found["log writer"]["advice"]
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_key_that_may_little_is_told_what_was_not_checked(tmp_path: Path) -> None:
    with serving(tmp_path, DRIFTQ_API_KEYS="master,reader:read,writer:write") as server:
        assert server.process.stdout is not None
        server.process.stdout.readline()
        code, found = doctor(server, DRIFTQ_API_KEY="writer")
        assert (code, found["key"]["status"]) == (0, "warn")
        assert "were not checked" in found["key"]["advice"]
        code, found = doctor(server, DRIFTQ_API_KEY="reader")
        assert (code, found["key"]["found"]) == (0, "entry 2 of DRIFTQ_API_KEYS: read")
        assert not found["disk space"]["found"].endswith(str(server.data_dir))
        _, found = doctor(server, DRIFTQ_API_KEY="master")
        assert found["disk space"]["found"].endswith(str(server.data_dir))
        assert found["server handles"]["status"] == "ok"
