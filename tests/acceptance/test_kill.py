"""A real server that is killed behind its answers: what they promised, over the wire, before and after."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import ServerProcess, serving

pytestmark = pytest.mark.slow

RECORD = {"data": {"x": [1, None, "é"]}, "tag": "g", "node": "n", "meta": {"k": "v"}}


def ok(server: ServerProcess, method: str, path: str, value: object = None) -> dict[str, Any]:
    status, body = server.ask(method, path, value)
    assert status in (200, 201), body
    return body


def write(server: ServerProcess, topic: str, *records: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return ok(server, "POST", f"/v0/topics/{topic}", {"records": records, **fields})


def records(server: ServerProcess, topic: str) -> list[dict[str, Any]]:
    page = ok(server, "POST", f"/v0/topics/{topic}/diff", {"include_tags": True, "limit": 1000})
    assert (page["caught_up"], page["tombstone"]) == (True, None)
    found: list[dict[str, Any]] = page["records"]
    return found


def test_what_was_acked_in_class_fsync_is_as_it_was_after_a_kill(tmp_path: Path) -> None:
    """inv: 24, 30, 53, 78, 87"""
    with serving(tmp_path) as server:
        server.wait_ready()
        ok(server, "PUT", "/v0/topics/t", {"durability": "fsync"})
        first = write(server, "t", RECORD, {"data": 2, "tag": "gone"}, idempotency_key="k")
        ok(server, "POST", "/v0/topics/t/delete", {"match": "gone"})
        write(server, "t", {"data": "behind the delete", "tag": "gone"})
        ok(server, "PUT", "/v0/topics/late", {"durability": "ephemeral"})
        write(server, "late", {"data": "not promised"})
        ok(server, "PUT", "/v0/topics/late", {"durability": "fsync"})
        changed = write(server, "late", {"data": "promised"})
        ok(server, "PUT", "/v0/topics/jobs", {"type": "queue", "durability": "fsync"})
        ok(server, "PUT", "/v0/routers/r", {"source": "src", "dest": "jobs"})
        write(server, "src", *[{"data": number, "tag": f"t{number}"} for number in range(4)])
        ok(server, "POST", "/v0/topics/jobs/claim", {"node": "w"})
        assert ok(server, "POST", "/v0/topics/jobs/ack", {"node": "w", "seqs": [1]})["acked"] == 1
        ok(server, "POST", "/v0/topics/jobs/delete", {"match": "t2"})
        before = records(server, "t")
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    assert {name: before[0][name] for name in ("$seq", "$node", "$tag", "meta", "data")} == {
        "$seq": 1,
        "$node": RECORD["node"],
        "$tag": RECORD["tag"],
        "meta": RECORD["meta"],
        "data": RECORD["data"],
    }
    with serving(tmp_path) as server:
        server.wait_ready()
        assert records(server, "t") == before
        assert [record["$seq"] for record in before] == [1, 3]
        again = write(server, "t", RECORD, idempotency_key="k")
        assert (again["seqs"], again["deduped"], first["deduped"]) == ([1, 2], True, False)
        (kept,) = [found for found in records(server, "late") if found["data"] == "promised"]
        assert kept["$seq"] == changed["last_seq"]
        assert [(copy["$seq"], copy["data"]) for copy in records(server, "jobs")] == [(2, 1), (4, 3)]


def test_no_acked_seq_of_class_disk_is_given_again_after_a_kill(tmp_path: Path) -> None:
    """inv: 79"""
    acked = 0
    for _ in range(3):
        with serving(tmp_path) as server:
            server.wait_ready()
            for _ in range(20):
                answer = write(server, "t", *[{"data": "x" * 100}] * 50)
                assert answer["first_seq"] > acked
                acked = answer["last_seq"]
            assert server.stop(signal.SIGKILL) == -signal.SIGKILL


def test_records_of_class_memory_are_loaded_after_a_kill_when_the_server_is_ready(tmp_path: Path) -> None:
    """proves: G-REC-17, G-DUR-3"""
    with serving(tmp_path) as server:
        server.wait_ready()
        ok(server, "PUT", "/v0/topics/m", {"durability": "memory"})
        for number in range(200):
            write(server, "m", *[{"data": f"{number}.{row}"} for row in range(5)])
        ok(server, "PUT", "/v0/topics/f", {"durability": "fsync"})
        write(server, "f", RECORD)
        server.stop(signal.SIGKILL)
    with serving(tmp_path) as server:
        server.wait_ready()
        assert len(records(server, "m")) == 1000
        assert write(server, "m", RECORD)["first_seq"] == 1001
        assert len(records(server, "f")) == 1
        server.process.send_signal(signal.SIGTERM)
        code, log = server.ended_with_log()
        assert code == 0
        assert " late=1 " in log
