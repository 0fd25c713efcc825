"""A real file system of 64 MiB that fills up: what is refused, what works, and what brings the space back."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from tests.support.process import ServerProcess, serving
from tests.support.waiting import until

pytestmark = pytest.mark.slow

_MIB = 1 << 20
_FLAGS = ("--wal-file-bytes", str(4 * _MIB), "--disk-reserve-bytes", str(2 * _MIB))
_VALUE = "x" * 900
_RECORDS = [{"data": _VALUE}] * 100
_FILLING_S = 60.0


def _run(*command: str) -> str | None:
    """Run a command; return why it failed, or None."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.strip()


@pytest.fixture(params=["ext4", "tmpfs"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB, where this machine lets us mount one."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    if request.param == "ext4":
        image = tmp_path / "disk.img"
        with image.open("wb") as file:
            file.truncate(64 * _MIB)
        failed = _run("mkfs.ext4", "-q", str(image)) or _run("mount", "-o", "loop", str(image), str(mounted))
    else:
        failed = _run("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(mounted))
    if failed is not None:
        pytest.skip(f"no file system of type {request.param} can be mounted here: {failed}")
    try:
        yield mounted
    finally:
        assert until(lambda: _run("umount", str(mounted)), lambda error: error is None) is None


def _started(directory: Path, mounted: Path) -> Any:
    return serving(directory, *_FLAGS, data_dir=str(mounted / "data"))


def _is_writable(server: ServerProcess) -> bool:
    return "writable" not in server.get("/v0/ready")[1]


def _fill(server: ServerProcess, *names: str, records: int = 100) -> dict[str, int]:
    """Write until the server has refused everything for two seconds; return how many records of each were acked."""
    write = {"records": _RECORDS[:records]}
    acked = dict.fromkeys(names, 0)
    ends = time.monotonic() + _FILLING_S
    taken = time.monotonic()
    while time.monotonic() - taken < 2.5:
        assert time.monotonic() < ends, "the disk is never full"
        for name in names:
            status, body = server.ask("POST", f"/v0/topics/{name}", write)
            if status in (200, 201):
                acked[name] += records
                taken = time.monotonic()
            else:
                assert (status, body["error"]["code"]) == (507, "disk_full")
                time.sleep(0.05)
    return acked


def _state(server: ServerProcess, name: str) -> dict[str, Any]:
    status, state = server.get(f"/v0/topics/{name}?touch=false")
    assert status == 200
    return state


def _write(server: ServerProcess, name: str) -> int:
    return server.ask("POST", f"/v0/topics/{name}", {"records": [{"data": 1}]})[0]


def _wait_until_written(server: ServerProcess, name: str) -> None:
    assert until(lambda: _write(server, name), lambda status: status == 200) == 200


def _take_the_rest(mounted: Path) -> Path:
    """Take every byte that is left, as another program on the disk would."""
    rest = mounted / "rest"
    with suppress(OSError), rest.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return rest


@pytest.mark.parametrize("way", ["delete", "cap", "topic"])
def test_a_full_disk_is_emptied_by_calls_alone(small: Path, tmp_path: Path, way: str) -> None:
    """Deletes, cap changes and topic deletes work on a full disk, and writes work again because of them.

    row: F-DISK-1, F-DISK-2
    proves: G-IO-15, G-IO-13
    """
    with _started(tmp_path, small) as server:
        server.wait_ready()
        for name in ("a", "b"):
            server.ask("PUT", f"/v0/topics/{name}", {"durability": "fsync"})
        server.ask("PUT", "/v0/topics/q", {"type": "queue", "durability": "fsync"})
        jobs = server.ask("POST", "/v0/topics/q", {"records": [{"data": n} for n in range(500)]})[1]["seqs"]
        acked = _fill(server, "a", "b")
        assert sum(acked.values()) * len(_VALUE) > 20 * _MIB, f"only {acked} records fitted"
        ready = server.get("/v0/ready")
        assert (ready[0], ready[1]["writable"], ready[1]["reason"]) == (200, False, "disk_full")
        assert server.metric("driftq_wal_read_only") == 1
        # Every ack of a job works, and so do reads.
        for first in range(0, 500, 50):
            claimed = server.ask("POST", "/v0/topics/q/claim", {"node": "w", "max": 50})
            assert (claimed[0], claimed[1].get("count")) == (200, 50), claimed
            done = server.ask("POST", "/v0/topics/q/ack", {"node": "w", "seqs": jobs[first : first + 50]})
            assert (done[0], done[1].get("acked")) == (200, 50), done
        page = server.ask("POST", "/v0/topics/a/diff", {"from_seq": 0, "limit": 10})
        assert [record["$seq"] for record in page[1]["records"]] == list(range(1, 11))
        free = shutil.disk_usage(small).free
        if way == "delete":
            status, answer = server.ask("POST", "/v0/topics/a/delete", {"before_seq": acked["a"]})
            assert (status, answer.get("deleted")) == (200, acked["a"] - 1), answer
        elif way == "cap":
            assert server.ask("PUT", "/v0/topics/a", {"durability": "fsync", "cap_records": 100})[0] == 200
        else:
            assert server.ask("DELETE", "/v0/topics/a")[0] == 200
        began = time.monotonic()
        until(lambda: shutil.disk_usage(small).free, lambda now: now > free + 8 * _MIB)
        assert time.monotonic() - began < 10
        _wait_until_written(server, "b")
        assert _is_writable(server)
        assert _state(server, "b")["count"] >= acked["b"]


def test_a_disk_that_small_topics_have_filled_is_emptied_by_deleting_all_their_records(
    small: Path, tmp_path: Path
) -> None:
    """No topic has a sealed segment, and a checkpoint copies the newest records of all of them.

    proves: G-IO-13, G-IO-15
    """
    names = [f"t{number}" for number in range(62)]
    with _started(tmp_path, small) as server:
        server.wait_ready()
        _fill(server, *names, records=30)
        for name in names[:40]:
            head = _state(server, name)["head_seq"]
            assert server.ask("POST", f"/v0/topics/{name}/delete", {"before_seq": head + 1})[0] == 200
        _wait_until_written(server, names[0])
        until(lambda: shutil.disk_usage(small).free, lambda now: now > 8 * _MIB)
        assert server.stop() == 0, "the last checkpoint had no room"


def test_a_start_without_a_free_byte_reads_deletes_and_recovers(small: Path, tmp_path: Path) -> None:
    """After a graceful stop and after a kill: it is ready, everything acked is there, and deletes work.

    row: F-DISK-3
    proves: G-IO-14
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        directory = tmp_path / number.name
        directory.mkdir()
        with _started(directory, small) as server:
            server.wait_ready()
            for name in ("a", "b"):
                server.ask("PUT", f"/v0/topics/{name}", {"durability": "fsync"})
            acked = _fill(server, "a", "b")
            heads = {name: _state(server, name)["head_seq"] for name in acked}
            server.stop(number)
        rest = _take_the_rest(small)
        with _started(directory, small) as server:
            server.wait_ready()
            assert {name: _state(server, name)["head_seq"] for name in acked} == heads
            status, answer = server.ask("POST", "/v0/topics/a/delete", {"before_seq": heads["a"]})
            assert (status, answer.get("earliest_seq")) == (200, heads["a"]), answer
            assert server.ask("PUT", "/v0/topics/b", {"durability": "fsync", "cap_records": 100})[0] == 200
            _wait_until_written(server, "b")
            assert server.ask("DELETE", "/v0/topics/a")[0] == 200
            assert server.stop() == 0
        rest.unlink(missing_ok=True)
        verified = subprocess.run(
            [sys.executable, "-m", "driftq", "verify", "--data-dir", str(small / "data"), "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert verified.returncode == 0, verified.stdout + verified.stderr
        assert json.decode(verified.stdout)["findings"] == []
        shutil.rmtree(small / "data")
