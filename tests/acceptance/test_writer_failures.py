"""Writers of a server that die or hang: what it shows, what it refuses, and how it comes back."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from driftq.cli.exits import ExitCode
from tests.acceptance.test_watch import read_until, watching
from tests.acceptance.test_writer_processes import (
    LOG,
    SEGMENTS,
    children_of,
    sealed_up_to,
    seqs,
    writer_processes,
    writing,
)
from tests.support.process import PATIENCE_S, Served, environment, serving
from tests.support.waiting import until

pytestmark = pytest.mark.slow

GRACE_MS = 2000
GRACE = ("--wal-stop-grace-ms", str(GRACE_MS))


def test_a_log_whose_writer_is_killed_is_shown_everywhere_and_the_server_exits_so_that_it_can_be_restarted(
    tmp_path: Path,
) -> None:
    """By hand. proves: G-IO-10, G-WRITER-1; row: F-WRITER-1"""
    with serving(tmp_path, *GRACE) as server:
        server.wait_ready()
        with writing(server, "fsync") as acked:
            until(lambda: len(acked), lambda count: count > 300)
            assert server.metric("driftq_wal_stopped") == 0
            stream = watching(server, "t")
            read_until(stream, b"event: caught-up")
            os.kill(writer_processes(server)[LOG], signal.SIGKILL)
        status, refused = server.ask("POST", "/v0/topics/t", {"records": [{"data": 1}]})
        assert (status, refused["error"]["code"]) == (500, "internal")
        assert "nothing of this write is stored; restart the server" in refused["error"]["message"]
        for probe in ("/v0/ready", "/readyz"):
            status, unready = server.ask("GET", probe)
            assert (status, unready["error"]["code"]) == (503, "wal_stopped")
        assert (server.metric("driftq_wal_stopped"), server.metric("driftq_ready")) == (1, 0)
        assert set(acked) <= set(seqs(server)), "reads are answered"
        assert server.get("/v0/health")[0] == 200
        read_until(stream, b"server_shutting_down")
        stream.close()
        code, errors = server.ended()
    assert code == ExitCode.WAL_STOPPED
    assert " ERROR driftq.engine.writer_watch: the log is stopped: the process that writes the log has ended" in errors
    assert "driftq: the log stopped: the process that writes the log has ended; all acked records" in errors
    with serving(tmp_path) as server:
        server.wait_ready()
        assert set(acked) <= set(seqs(server))
        assert server.ask("POST", "/v0/topics/t", {"records": [{"data": 1}]})[0] == 200


def serve_command(directory: Path, *flags: str) -> list[str]:
    """A server whose process somebody else starts."""
    place = ["--port", "0", "--port-file", str(directory / "port"), "--data-dir", str(directory / "data")]
    return [sys.executable, "-m", "driftq", "serve", *place, *flags]


def ready(server: Served) -> bool:
    """Does it answer that it is?"""
    try:
        return server.get("/readyz")[0] == 200
    except OSError:
        return False


def log_writer_below(pid: int) -> int | None:
    """The log writer of the server that is a child of this process."""
    for child in children_of(pid).values():
        found = children_of(child).get(LOG)
        if found is not None:
            return found
    return None


def test_a_supervisor_restarts_a_server_whose_log_writer_was_killed_and_nothing_acked_is_lost(tmp_path: Path) -> None:
    """proves: G-WRITER-1; row: F-WRITER-1"""
    codes = tmp_path / "codes"
    supervisor = Path(__file__).with_name("supervisor.py")
    command = [sys.executable, str(supervisor), str(codes), *serve_command(tmp_path, *GRACE)]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE) as process:
        try:
            server = Served(tmp_path / "port")
            until(lambda: ready(server), bool)
            acked: set[int] = set()
            for exits in ("8\n", "8\n8\n"):
                with writing(server, "fsync") as more:
                    until(lambda: len(more), lambda count: count > 100)
                    writer = until(lambda: log_writer_below(process.pid), lambda pid: pid is not None)
                    assert writer is not None
                    os.kill(writer, signal.SIGKILL)
                acked |= set(more)
                until(lambda: codes.read_text() if codes.exists() else "", exits.__eq__)
                until(lambda: ready(server), bool)
                assert acked <= set(seqs(server))
            (pid,) = children_of(process.pid).values()
            os.kill(pid, signal.SIGTERM)
            process.wait(PATIENCE_S)
        finally:
            process.kill()
    assert codes.read_text().split() == ["8", "8", "0"]


def test_a_server_that_is_pid_1_exits_with_the_code_of_a_stopped_log(tmp_path: Path) -> None:
    """In containers a server is PID 1, which the kernel treats in its own way. proves: G-WRITER-1"""
    namespace = [shutil.which("unshare") or "unshare", "--pid", "--fork", "--kill-child"]
    allowed = (
        subprocess.run([*namespace, "true"], capture_output=True, check=False) if shutil.which("unshare") else None
    )
    if allowed is None or allowed.returncode:
        pytest.skip("this machine does not let the user make a PID namespace (unshare --pid)")
    command = [*namespace, *serve_command(tmp_path, "--wal-stop-grace-ms", "0")]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        try:
            server = Served(tmp_path / "port")
            until(lambda: ready(server), bool)
            assert (tmp_path / "data/.driftq.lock").read_text(encoding="utf-8") == "pid=1\n"
            status, _ = server.ask(
                "POST", "/v0/topics/t", {"records": [{"data": 1}], "config": {"durability": "fsync"}}
            )
            assert status == 201
            writer = until(lambda: log_writer_below(process.pid), lambda pid: pid is not None)
            assert writer is not None
            os.kill(writer, signal.SIGKILL)
            assert process.wait(PATIENCE_S) == ExitCode.WAL_STOPPED
        finally:
            process.kill()
    with serving(tmp_path) as again:
        again.wait_ready()
        assert seqs(again) == [1]


# --- writers that hang -----------------------------------------------------------------------------------------------

LIMIT = ("--writer-hang-limit-ms", "4000")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that is stopped by a signal, as one is that waits for a device which does not answer."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def post(server: Served, topic: str, body: object) -> tuple[int, str | None, dict[str, Any]]:
    """Status, Retry-After and body of a write."""
    connection = HTTPConnection(server.address, timeout=PATIENCE_S)
    try:
        connection.request("POST", f"/v0/topics/{topic}", json.encode(body), {"content-type": "application/json"})
        reply = connection.getresponse()
        return reply.status, reply.getheader("retry-after"), json.decode(reply.read())
    finally:
        connection.close()


ONE = {"records": [{"data": 1}]}


def begin_disk_topic(server: Served) -> None:
    """Topic `d` of class `disk` with one record that is on disk, and with seqs reserved for the next ones."""
    server.ask("PUT", "/v0/topics/d", {"durability": "disk"})
    assert post(server, "d", ONE)[0] == 200
    until(lambda: server.get("/v0/topics/d")[1]["synced_seq"], lambda seq: seq == 1)


def test_a_log_writer_that_hangs_for_a_while_is_shown_and_refuses_writes_until_it_answers(tmp_path: Path) -> None:
    """proves: G-WRITER-2; row: F-WRITER-2"""
    with serving(tmp_path) as server:
        server.wait_ready()
        server.ask("PUT", "/v0/topics/t", {"durability": "disk"})
        acked = [post(server, "t", ONE)[2]["last_seq"]]
        assert server.ask("POST", "/v1/topics", {"name": "b", "partitions": 1})[0] in (200, 201)
        with stopped(writer_processes(server)[LOG]):
            acked.append(post(server, "t", ONE)[2]["last_seq"])
            found = until(lambda: server.get("/v0/ready"), lambda answer: "writers" in answer[1])
            assert found[0] == 200
            assert found[1]["writable"] is False
            assert found[1]["writers"]["log"]["state"] == "hung"  # type: ignore[index]
            assert server.metric('driftq_writer_hung{writer="log"}') == 1
            status, retry_after, refused = post(server, "t", ONE)
            assert (status, retry_after, refused["error"]["code"]) == (429, "1", "throttled")
            assert refused["error"]["detail"]["reason"] == "log_writer_hung"
            status, refused = server.ask("POST", "/v1/produce", {"topic": "b", "value": "x"})
            assert (status, refused["error"]) == (429, "RESOURCE_EXHAUSTED")
            assert seqs(server) == acked, "reads are answered"
        until(lambda: server.get("/v0/ready")[1], lambda ready: "writers" not in ready)
        assert post(server, "t", ONE)[0] == 200
        server.process.send_signal(signal.SIGTERM)
        code, errors = server.ended()
    assert code == 0
    assert "WARNING driftq.engine.writer_watch: the log writer has not answered for 5 s" in errors
    assert "WARNING driftq.engine.writer_watch: the log writer answers again after" in errors


def test_a_log_writer_that_hangs_for_good_makes_the_server_exit_with_its_own_code(tmp_path: Path) -> None:
    """proves: G-WRITER-2; row: F-WRITER-3"""
    with serving(tmp_path, *LIMIT) as server:
        server.wait_ready()
        begin_disk_topic(server)
        server.ask("PUT", "/v0/topics/t", {"durability": "fsync"})
        assert post(server, "t", ONE)[0] == 200
        pid = writer_processes(server)[LOG]
        with stopped(pid):
            assert post(server, "d", {"records": [{"data": 1}] * 3})[0] == 200
            status, _, answer = post(server, "t", ONE)
            assert (status, answer["error"]["code"]) == (500, "internal")
            assert "it is not known whether this write is stored" in answer["error"]["message"]
            assert server.process.wait(PATIENCE_S) == ExitCode.WAL_HUNG
        _, errors = server.ended_with_log()
    assert (
        "ERROR driftq.engine.writer_watch: the log is stopped: the process that writes the log has not answered"
        in errors
    )
    assert re.search("driftq: the log stopped: the process that writes the log has not answered for [4-6] s", errors)
    assert "acked records that are not known to be on disk: 3 of class disk; all of class fsync are" in errors
    assert f"process {pid} may still write them; the next start waits for it" in errors
    with serving(tmp_path) as server:
        server.wait_ready()
        assert seqs(server)[:1] == [1]
        assert server.ask("POST", "/v0/topics/d/diff", {"from_seq": 0})[1]["next_from_seq"] == 4, "it wrote them"


def test_a_stop_with_a_hung_log_writer_says_what_is_known_and_no_more(tmp_path: Path) -> None:
    """proves: G-WRITER-1; row: F-WRITER-3"""
    with serving(tmp_path) as server:
        server.wait_ready()
        begin_disk_topic(server)
        server.ask("PUT", "/v0/topics/m", {"durability": "memory"})
        pid = writer_processes(server)[LOG]
        with stopped(pid):
            assert post(server, "d", {"records": [{"data": 1}] * 3})[0] == 200
            assert post(server, "m", {"records": [{"data": 1}] * 2})[0] == 200
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(PATIENCE_S) == ExitCode.WAL_HUNG
        _, errors = server.ended()
    said = errors.splitlines()[-1]
    assert "driftq: the process that writes the log has not answered for" in said
    assert "acked records that are not known to be on disk: 3 of class disk and 2 of class memory" in said
    assert f"process {pid} may still write them" in said
    assert "nothing is lost" not in said


def test_a_stop_with_a_hung_writer_of_segments_ends_in_time_and_the_next_start_need_not_wait(tmp_path: Path) -> None:
    """Everything is in the log, so nothing is missing. proves: G-WRITER-3; row: F-WRITER-6"""
    with serving(tmp_path, "--segment-max-events", "100") as server:
        server.wait_ready()
        server.ask("PUT", "/v0/topics/t", {})
        with stopped(writer_processes(server)[SEGMENTS]):
            assert post(server, "t", {"records": [{"data": "x"}] * 250})[0] == 200
            began_s = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(PATIENCE_S) == ExitCode.FAILED
            assert time.monotonic() - began_s < 10.5
        said = server.ended()[1].splitlines()[-1]
    assert "driftq: the process that writes segments has not answered for" in said
    assert "all acked records of the classes fsync, disk and memory are on disk; the next start reads the log" in said
    with serving(tmp_path) as server:
        server.wait_ready()
        assert time.monotonic() - server.began_s < 10
        assert seqs(server) == list(range(1, 251))


def test_a_writer_of_segments_that_hangs_for_good_is_killed_and_replaced(tmp_path: Path) -> None:
    """proves: G-WRITER-3; row: F-WRITER-4"""
    with serving(tmp_path, "--segment-max-events", "100", *LIMIT) as server:
        server.wait_ready()
        server.ask("PUT", "/v0/topics/t", {})
        write = {"records": [{"data": "x", "tag": "t"}] * 250}
        with stopped(writer_processes(server)[SEGMENTS]):
            for _ in range(4):
                assert post(server, "t", write)[0] == 200
            until(lambda: children_of(server.process.pid), lambda found: SEGMENTS not in found)
            sealed_up_to(server, 900)
            assert post(server, "t", write)[0] == 200
            _, ready = server.get("/v0/ready")
            assert ready["writers"] == {"segments": {"state": "replaced"}}
            assert server.metric("driftq_writer_replaced") == 1
            assert seqs(server) == list(range(1, 1251))
        server.process.send_signal(signal.SIGTERM)
        code, errors = server.ended()
    assert code == 0
    assert re.search("the segments writer has not answered for [4-6] s and is killed", errors)
    assert "the process that writes segments has ended; threads of the server write them" in errors
    with serving(tmp_path) as server:
        server.wait_ready()
        assert seqs(server) == list(range(1, 1251))


MIB = 1 << 20
CACHE_BYTES = 64 * MIB
ABOVE_CACHE_MAX = 200 * MIB


def most_resident(pid: int) -> int:
    """Return the most bytes of memory that a process has had, as the kernel counted them."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) << 10


def keep_writing(server: Served, *, enough: int, end_s: float) -> tuple[int, int]:
    """Write this many bytes, or until a moment; return the bytes that were taken, and how many writes were refused."""
    body = {"records": [{"data": "x" * 10_000}] * 200}
    written = refusals = 0
    while written < enough and time.monotonic() < end_s:
        status, retry_after, answer = post(server, "t", body)
        if status == 200:
            written += 200 * 10_000
        else:
            refusals += 1
            assert (status, retry_after, answer["error"]["code"]) == (429, "1", "throttled")
            assert answer["error"]["detail"] == {"limit": "unsealed_bytes", "max": CACHE_BYTES}
            time.sleep(0.02)
    return written, refusals


def test_memory_and_log_are_bounded_while_the_writer_of_segments_hangs_and_a_client_keeps_writing(
    tmp_path: Path,
) -> None:
    """Also when it is killed, threads write everything at once, and the checkpoint that waited goes on.

    proves: G-WRITER-4; row: F-WRITER-5
    """
    with serving(tmp_path, "--cache-bytes", str(CACHE_BYTES), "--writer-hang-limit-ms", "8000") as server:
        server.wait_ready()
        server.ask("PUT", "/v0/topics/t", {"durability": "disk"})
        with stopped(writer_processes(server)[SEGMENTS]):
            _, refusals = keep_writing(server, enough=500 * MIB, end_s=time.monotonic() + 5)
            log = sum(path.stat().st_size for path in (server.data_dir / "wal").iterdir())
            assert refusals > 10
            assert log <= 2 * CACHE_BYTES + 128 * MIB, f"{log / MIB:.0f} MiB of log"
            written, _ = keep_writing(server, enough=300 * MIB, end_s=time.monotonic() + PATIENCE_S)
            assert written >= 300 * MIB
            assert server.metric("driftq_writer_replaced") == 1
        most = most_resident(server.process.pid)
        assert most <= CACHE_BYTES + ABOVE_CACHE_MAX, f"{most / MIB:.0f} MiB resident"
