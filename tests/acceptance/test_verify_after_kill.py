"""Real kills under load with routers: after a restart and a clean stop `driftq verify` exits 0."""

import signal
import subprocess
import sys
import threading
from http.client import HTTPException
from pathlib import Path

import pytest

from tests.support.process import ServerProcess, environment, serving

pytestmark = pytest.mark.slow

ROUNDS = 3
_RECORDS = [{"data": number, "tag": "ab"[number % 2]} for number in range(40)]


def _write_until_gone(server: ServerProcess, written: threading.Event) -> None:
    for number in range(2000):
        try:
            server.ask("POST", "/v0/topics/source", {"records": _RECORDS[: 1 + number % 40]})
        except (OSError, HTTPException):
            return
        if number == 60:
            written.set()


def test_verify_exits_0_after_a_kill_a_restart_and_a_clean_stop(tmp_path: Path) -> None:
    """proves: G-SEG-7; row: F-FILES-1"""
    flags = ("--segment-max-events", "500", "--wal-file-bytes", str(1 << 20), "--checkpoint-wal-bytes", str(256 << 10))
    for _ in range(ROUNDS):
        with serving(tmp_path, *flags) as server:
            server.wait_ready()
            for name in ("source", "copy", "picked"):
                server.ask("PUT", f"/v0/topics/{name}", {"durability": "disk"})
            server.ask("PUT", "/v0/routers/one", {"source": "source", "dest": "copy"})
            picked = {"source": "source", "dest": "picked", "filter": ["tag", "Glob", "a*"]}
            server.ask("PUT", "/v0/routers/two", picked)
            written = threading.Event()
            writer = threading.Thread(target=_write_until_gone, args=(server, written))
            writer.start()
            assert written.wait(30)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            writer.join()
        with serving(tmp_path, *flags) as server:
            server.wait_ready()
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(30) == 0
        checked = subprocess.run(
            [sys.executable, "-m", "driftq", "verify", "--data-dir", str(tmp_path / "data")],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr
