"""The processes that write for a server: what becomes of them, and of it, when one side is gone."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.process import Served, ServerProcess, serving
from tests.support.waiting import until

pytestmark = pytest.mark.slow

LOG, SEGMENTS = "driftq-write-lo", "driftq-keep-seg"


def children(server: ServerProcess) -> dict[str, int]:
    """The processes of a server that run, by name."""
    return children_of(server.process.pid)


def children_of(pid: int) -> dict[str, int]:
    """The processes of a process that run, by name."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        stat = Path(f"/proc/{child}/stat").read_text()
        name, _, rest = stat.partition("(")[2].rpartition(")")
        if rest.split()[0] != "Z":
            found[name] = int(child)
    return found


def writer_processes(server: ServerProcess) -> dict[str, int]:
    """Both, once they have been told what they are."""
    return until(lambda: children(server), lambda found: {LOG, SEGMENTS} <= set(found))


@contextmanager
def writing(server: Served, durability: str) -> Iterator[list[int]]:
    """Eight writers, until they are refused or nobody answers: the seqs that were acked."""
    server.ask("PUT", "/v0/topics/t", {"durability": durability})
    acked: list[int] = []

    def write() -> None:
        try:
            while True:
                status, body = server.ask("POST", "/v0/topics/t", {"records": [{"data": "x"}] * 3})
                if status != 200:
                    return
                acked.extend(body["seqs"])
        except (OSError, ValueError):
            return

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    yield acked
    for thread in threads:
        thread.join()


def seqs(server: Served) -> list[int]:
    """All that are there; behind a crash seqs that were reserved and not used are shown as lost."""
    found: list[int] = []
    while True:
        _, page = server.ask("POST", "/v0/topics/t/diff", {"from_seq": found[-1] if found else 0, "limit": 1000})
        found += [record["$seq"] for record in page["records"]]
        if page["caught_up"]:
            return found


def sealed_up_to(server: ServerProcess, seq: int) -> None:
    """Wait until it is in a sealed segment."""
    until(
        lambda: server.ask("GET", "/v0/topics/t/segments")[1]["segments"],
        lambda found: bool(found) and found[-1]["last_seq"] >= seq,
    )


@pytest.mark.parametrize("durability", ["disk", "memory", "fsync"])
def test_a_kill_of_the_server_alone_loses_nothing_that_was_queued(tmp_path: Path, durability: str) -> None:
    """proves: G-REC-12"""
    with serving(tmp_path) as server:
        server.wait_ready()
        with writing(server, durability) as acked:
            until(lambda: len(acked), lambda count: count > 600)
            server.stop(signal.SIGKILL)
    with serving(tmp_path) as server:
        server.wait_ready()
        assert set(acked) <= set(seqs(server))


def test_a_start_waits_for_what_the_server_before_it_has_left_behind(tmp_path: Path) -> None:
    """proves: G-REC-12"""
    with serving(tmp_path) as server:
        server.wait_ready()
        server.ask("PUT", "/v0/topics/t", {"durability": "memory"})
        writer_process = writer_processes(server)[LOG]
        os.kill(writer_process, signal.SIGSTOP)
        status, body = server.ask("POST", "/v0/topics/t", {"records": [{"data": 1}]})
        server.process.kill()
        server.process.wait()
        with serving(tmp_path) as second:
            assert second.process.stdout is not None
            os.kill(writer_process, signal.SIGCONT)
            second.wait_ready()
            assert (status, seqs(second)) == (200, body["seqs"])


def test_without_the_writer_of_its_log_a_server_takes_no_writes_and_loses_none(tmp_path: Path) -> None:
    """proves: G-IO-10"""
    with serving(tmp_path) as server:
        server.wait_ready()
        with writing(server, "fsync") as acked:
            until(lambda: len(acked), lambda count: count > 300)
            os.kill(writer_processes(server)[LOG], signal.SIGKILL)
        status, refused = server.ask("POST", "/v0/topics/t", {"records": [{"data": 1}]})
        assert (status, refused["error"]["code"]) == (500, "internal")
        assert "restart the server" in refused["error"]["message"]
        assert set(acked) <= set(seqs(server))
        assert server.stop() == 1, "the last checkpoint was not taken"
    with serving(tmp_path) as server:
        server.wait_ready()
        assert set(acked) <= set(seqs(server))
        assert server.ask("POST", "/v0/topics/t", {"records": [{"data": 1}]})[0] == 200


def test_without_the_writer_of_segments_the_server_writes_and_seals_them_itself(tmp_path: Path) -> None:
    """proves: G-IO-10"""
    with serving(tmp_path, "--segment-max-events", "100") as server:
        server.wait_ready()
        server.ask("PUT", "/v0/topics/t", {})
        write = {"records": [{"data": "x", "tag": "t"}] * 250}
        assert server.ask("POST", "/v0/topics/t", write)[0] == 200
        sealed_up_to(server, 200)
        os.kill(writer_processes(server)[SEGMENTS], signal.SIGKILL)
        until(lambda: children(server), lambda found: SEGMENTS not in found)
        for _ in range(4):
            assert server.ask("POST", "/v0/topics/t", write)[0] == 200
        sealed_up_to(server, 1200)
        assert seqs(server) == list(range(1, 1251))
        assert server.stop() == 0
    with serving(tmp_path) as server:
        server.wait_ready()
        assert seqs(server) == list(range(1, 1251))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_whole_group_is_a_graceful_stop(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path) as server:
        server.wait_ready()
        assert server.ask("POST", "/v0/topics/t", {"records": [{"data": 1}]})[0] == 201
        for pid in [*writer_processes(server).values(), server.process.pid]:
            os.kill(pid, number)
        assert server.ended() == (0, "")
    with serving(tmp_path) as server:
        server.wait_ready()
        assert seqs(server) == [1]
