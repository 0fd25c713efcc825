"""Calls to a topic whose records are still being loaded wait for that topic, and calls to others do not."""

import pytest

from driftq.http.answer import Promise
from driftq.storage.wal import memory_spans as spans
from driftq.testing import ServerRig
from driftq.testing.server_rig import Asked

RECORDS = 60


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> ServerRig:
    """A server that was killed, and is ready again; topic `m` of class `memory` is not loaded yet."""
    monkeypatch.setattr(spans, "SPAN_BYTES_MIN", 1)
    monkeypatch.setattr(spans, "NAMED_BYTES", 1)
    rig = ServerRig(wal_file_bytes=1 << 20)
    rig.ok("PUT", "/v0/topics/m", {"durability": "memory"})
    rig.ok("PUT", "/v0/topics/f", {"durability": "fsync"})
    for number in range(RECORDS):
        rig.write("m", number)
    rig.write("f", 1)
    rig.kill()
    assert rig.server.engine.catalog.by_name["m"].late
    return rig


def test_the_server_is_ready_and_other_topics_answer(rig: ServerRig) -> None:
    assert rig.server.readiness().status == "ready"
    answer = rig.send("GET", "/v0/topics/f")
    assert not isinstance(answer, Promise)
    assert rig.server.engine.catalog.by_name["m"].late


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v0/topics/m", None),
        ("POST", "/v0/topics/m/diff", {"limit": 1000}),
        ("POST", "/v0/topics/m", {"records": [{"data": 1}]}),
        ("POST", "/v0/topics/m/delete", {"before_seq": 11}),
        ("PATCH", "/v0/topics/m", {"cap_records": 5}),
        ("DELETE", "/v0/topics/m", None),
    ],
)
def test_a_call_that_names_it_waits_and_is_right(rig: ServerRig, method: str, path: str, body: object) -> None:
    answer = rig.send(method, path, body) if body is not None else rig.send(method, path)
    assert isinstance(answer, Promise)
    assert not answer.settled
    assert rig.server.engine.catalog.by_name["m"].late
    rig.runtime.run_until_idle()
    assert answer.result().status == 200
    if method != "DELETE":
        found: Asked = rig.ask("GET", "/v0/topics/m")
        expected = {"/v0/topics/m": RECORDS + (method == "POST")}.get(path, RECORDS)
        assert found.body["head_seq"] == expected


def test_calls_that_do_not_name_it_in_their_path_find_it_whole(rig: ServerRig) -> None:
    topics = {topic["topic"]: topic for topic in rig.ok("GET", "/v0/topics")["topics"]}
    assert topics["m"]["head_seq"] == RECORDS


def test_topics_that_routers_or_queues_are_about_are_loaded_by_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies are made again from their sources, and queues count their jobs, before the server is ready."""
    monkeypatch.setattr(spans, "SPAN_BYTES_MIN", 1)
    monkeypatch.setattr(spans, "NAMED_BYTES", 1)
    rig = ServerRig(wal_file_bytes=1 << 20)
    for name, config in {"source": {}, "copies": {}, "jobs": {"type": "queue"}, "plain": {}}.items():
        rig.ok("PUT", f"/v0/topics/{name}", {"durability": "memory", **config})
    rig.ok("PUT", "/v0/topics/kept", {"durability": "fsync"})
    rig.ok("PUT", "/v0/routers/a", {"source": "source", "dest": "copies"})
    rig.ok("PUT", "/v0/routers/b", {"source": "source", "dest": "kept"})
    for number in range(RECORDS):
        for name in ("source", "jobs", "plain"):
            rig.write(name, number)
    (job,) = rig.ok("POST", "/v0/topics/jobs/claim", {"node": "n", "max": 1})["claimed"]
    rig.ok("POST", "/v0/topics/jobs/ack", {"node": "n", "seqs": [job["$seq"]]})
    rig.advance(100)
    heads = {name: rig.ok("GET", f"/v0/topics/{name}")["head_seq"] for name in ("source", "copies", "kept", "plain")}
    assert heads == dict.fromkeys(heads, RECORDS)
    for _ in range(2):
        rig.kill()
        by_name = rig.server.engine.catalog.by_name
        assert not any(by_name[name].late for name in ("source", "copies", "kept", "jobs"))
        assert {name: rig.ok("GET", f"/v0/topics/{name}")["head_seq"] for name in heads} == heads
        assert rig.ok("GET", "/v0/topics/jobs")["count"] == RECORDS - 1
        assert [record["data"] for record in rig.diff("copies", limit=1000)["records"]] == list(range(RECORDS))


def test_a_router_from_a_topic_that_is_not_loaded_begins_behind_its_records(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/routers/r", {"source": "m", "dest": "f"})
    rig.write("m", "new")
    rig.advance(100)
    assert [record["data"] for record in rig.diff("f")["records"]] == [1, "new"]
    rig.kill()
    assert [record["data"] for record in rig.diff("f")["records"]] == [1, "new"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v0/topics", None),
        ("PUT", "/v0/routers/r", {"source": "m", "dest": "f"}),
        ("POST", "/v0/watch", {"topics": {"m": {"from_seq": 0}}}),
    ],
)
def test_a_call_whose_body_may_name_it_waits_and_does_not_stop_the_loop(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: object
) -> None:
    engine = rig.server.engine
    assert engine.loading.open
    monkeypatch.setattr(engine.catalog, "load_late", lambda: pytest.fail("the loop is blocked"))
    rig.ok(method, path, body)
    assert not engine.loading.open
