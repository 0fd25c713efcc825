"""`GET …/work` on the wire: what is checked before it opens, its frames, its beat, its ends."""

from typing import Any

import pytest
from msgspec import json

from driftq.testing.server_rig import KeptSink, ServerRig

LONG_MS = 3_600_000


@pytest.fixture
def rig() -> ServerRig:
    rig = ServerRig()
    rig.ok("PUT", "/v0/topics/q", {"type": "queue", "lease_ms": LONG_MS})
    return rig


def jobs(sink: KeptSink) -> list[Any]:
    """The jobs since the last call."""
    frames = sink.taken().decode().split("\n\n")
    return [json.decode(frame.partition("data: ")[2]) for frame in frames if "event: job\n" in frame]


def test_a_stream_opens_with_retry_and_one_heartbeat(rig: ServerRig) -> None:
    answer, sink = rig.stream("/v0/topics/q/work?node=w")
    assert sink.taken() == b"retry: 2000\n\n: hb %d\n\n" % rig.clock.wall_ms()
    assert dict(answer.headers)[b"cache-control"] == b"no-store"


def test_a_job_is_one_frame(rig: ServerRig) -> None:
    _, sink = rig.stream("/v0/topics/q/work?node=w&lease_ms=5000")
    sink.taken()
    rig.ok("POST", "/v0/topics/q", {"records": [{"data": {"n": [1]}, "tag": "t", "node": "n", "meta": {"k": "v"}}]})
    text = sink.taken().decode()
    assert text.startswith('id: 1\nevent: job\ndata: {"topic":"q","$seq":1,"lease_id":"lease_')
    now = rig.clock.wall_ms()
    assert text.endswith(
        f'"deadline":{now + 5000},"$ts":{now},"$tag":"t","deliveries":1,"data":{{"n":[1]}},"meta":{{"k":"v"}}}}\n\n'
    )


@pytest.mark.parametrize("query", ["", "&max=0", "&max=many", "&max=-5"])
def test_max_is_one_unless_it_is_a_larger_number(rig: ServerRig, query: str) -> None:
    rig.write("q", 1, 2, 3)
    assert [job["$seq"] for job in jobs(rig.stream(f"/v0/topics/q/work?node=w{query}")[1])] == [1]


def test_refills_and_the_disconnect(rig: ServerRig) -> None:
    """inv: 70"""
    rig.write("q", 1, 2, 3, 4, 5)
    stream, sink = rig.stream("/v0/topics/q/work?node=w&max=2")
    assert [job["$seq"] for job in jobs(sink)] == [1, 2]
    rig.ok("POST", "/v0/topics/q/ack", {"node": "w", "seqs": [1]})
    assert [job["$seq"] for job in jobs(sink)] == [3]
    stream.source.closed()
    assert rig.ok("GET", "/v0/topics/q")["queue"] == {"ready": 4, "in_flight": 0, "dead_lettered": 0}


def test_heartbeats_come_when_there_is_nothing_else(rig: ServerRig) -> None:
    stream, sink = rig.stream("/v0/topics/q/work?node=w")
    sink.taken()
    rig.advance(10_000)
    rig.write("q", 1)
    assert len(jobs(sink)) == 1
    rig.advance(14_999)
    assert sink.taken() == b""
    rig.advance(1)
    assert sink.taken() == b": hb %d\n\n" % rig.clock.wall_ms()
    stream.source.closed()
    rig.advance(60_000)
    assert sink.taken() == b""


def test_a_worker_that_does_not_read_is_sent_no_heartbeats(rig: ServerRig) -> None:
    """Else what waits for it grows for ever, and its connection never looks stuck."""
    _, sink = rig.stream("/v0/topics/q/work?node=w")
    sink.taken()
    sink.room = False
    rig.advance(60_000)
    assert sink.taken() == b""
    sink.room = True
    rig.advance(15_000)
    assert sink.taken() == b": hb %d\n\n" % rig.clock.wall_ms()


def test_what_is_checked_before_it_opens(rig: ServerRig) -> None:
    """inv: 71"""
    rig.ok("PUT", "/v0/topics/log", {})
    for topic in ("q", "log", "absent"):
        for query in ("", "?node=", f"?node={'x' * 129}"):
            assert rig.code("GET", f"/v0/topics/{topic}/work{query}") == (400, "invalid_request")
    assert rig.code("GET", "/v0/topics/absent/work?node=w") == (404, "topic_not_found")
    assert rig.code("GET", "/v0/topics/log/work?node=w") == (409, "not_a_queue")
    refused = rig.code("GET", "/v0/topics/q/work", headers={"Accept": "application/json"})
    assert refused == (406, "not_acceptable")


def test_streams_are_counted(rig: ServerRig) -> None:
    rig = ServerRig(limits={"sse_connections_max": 1})
    rig.ok("PUT", "/v0/topics/q", {"type": "queue"})
    stream, _ = rig.stream("/v0/topics/q/work?node=w")
    assert rig.code("GET", "/v0/topics/q/work?node=w") == (429, "throttled")
    stream.source.closed()
    rig.stream("/v0/topics/q/work?node=w")


def test_the_key_may_stand_in_the_query() -> None:
    rig = ServerRig(keys="root,rw:rw")
    rig.ok("PUT", "/v0/topics/q", {"type": "queue"}, key="root")
    rig.stream("/v0/topics/q/work?node=w&token=rw")
    assert rig.code("GET", "/v0/topics/q/work?node=w") == (401, "unauthorized")


def test_a_deleted_queue_ends_the_stream(rig: ServerRig) -> None:
    rig.write("q", 1, 2)
    _, sink = rig.stream("/v0/topics/q/work?node=w")
    sink.taken()
    rig.ok("DELETE", "/v0/topics/q")
    event, data = sink.taken().decode().split("\n")[:2]
    assert (event, json.decode(data.removeprefix("data: "))["code"]) == ("event: error", 409)
    assert sink.ended


def test_shutdown_ends_the_stream(rig: ServerRig) -> None:
    """inv: 84"""
    stream, sink = rig.stream("/v0/topics/q/work?node=w")
    sink.taken()
    stream.source.goodbye()
    assert b'"code":"server_shutting_down"' in sink.taken()
    assert sink.ended


def test_a_stream_that_never_opened_lets_go_of_its_slot(rig: ServerRig) -> None:
    answer = rig.send("GET", "/v0/topics/q/work?node=w")
    answer.source.closed()  # type: ignore[union-attr]
    assert rig.server.admission.streams == 0
