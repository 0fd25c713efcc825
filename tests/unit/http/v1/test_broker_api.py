"""Routing, form and ids of the broker API, and who may come in (http-v1 §1)."""

import pytest
from msgspec import json

from driftq.errors import DiskFullError, InternalError, OverloadedError, ShardStoppedError
from driftq.http.v1.errors import error_reply
from tests.unit.http.v1.brokered import BrokerRig


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("HEAD", "/v1/topics", b"GET, POST"),
        ("PUT", "/v1/topics", b"GET, POST"),
        ("OPTIONS", "/v1/topics", b"GET, POST"),
        ("POST", "/v1/consume", b"GET"),
        ("GET", "/v1/ack", b"POST"),
        ("HEAD", "/v1/healthz", b"GET"),
    ],
)
def test_another_method_is_405_with_those_that_are_allowed(method: str, path: str, allowed: bytes) -> None:
    """inv1: 3"""
    rig = BrokerRig()
    reply = rig.reply(method, path, raw=b"{not json")
    assert (reply.status, dict(reply.headers)[b"allow"]) == (405, allowed)
    assert json.decode(reply.body) == {"error": "METHOD_NOT_ALLOWED", "message": "method not allowed"}


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/nope", "/v1/healthz/", "/v1/topics/x", "/v1/metrics"])
def test_an_unknown_path_of_this_api_is_not_found(path: str) -> None:
    rig = BrokerRig()
    assert rig.message(rig.reply("GET", path), 404) == "not found"


def test_healthz_and_version() -> None:
    """inv1: 1, 2"""
    rig = BrokerRig()
    assert rig.reply("GET", "/v1/healthz").body == b'{"status":"ok"}\n'
    version = json.decode(rig.reply("GET", "/v1/version").body)
    assert sorted(version) == ["commit", "version", "wal_enabled"]
    assert version["wal_enabled"] is True


def test_every_reply_has_the_form_of_json() -> None:
    rig = BrokerRig()
    for method, path, status in [("GET", "/v1/healthz", 200), ("GET", "/v1/no", 404), ("POST", "/v1/topics", 400)]:
        reply = rig.reply(method, path)
        assert reply.status == status
        assert reply.content_type == b"application/json; charset=utf-8"
        assert reply.body.endswith(b"}\n")
        assert reply.plain


def test_a_closing_server_refuses_in_this_form_and_is_alive() -> None:
    rig = BrokerRig()
    rig.server.close()
    reply = rig.reply("GET", "/v1/topics")
    assert (reply.status, dict(reply.headers)[b"retry-after"]) == (503, b"1")
    assert json.decode(reply.body)["error"] == "UNAVAILABLE"
    assert rig.reply("GET", "/v1/healthz").status == 200


def test_keys_guard_everything_but_the_probes() -> None:
    rig = BrokerRig(keys="reader:r,writer:w,boss:a,team:rw+a:@team.")
    for path in ("/v1/healthz", "/v1/version"):
        assert rig.reply("GET", path).status == 200
    for path in ("/v1/topics", "/metrics", "/v1/nope"):
        assert rig.message(rig.reply("GET", path), 401)
    assert rig.reply("GET", "/v1/topics", key="reader").status == 200
    assert rig.message(rig.reply("GET", "/v1/topics", key="writer"), 403)
    assert rig.message(rig.reply("POST", "/v1/topics", {"name": "t"}, key="writer"), 403)
    assert rig.reply("POST", "/v1/topics", {"name": "t"}, key="boss").status == 201
    assert rig.message(rig.reply("POST", "/v1/topics", {"name": "t"}, key="team"), 403)
    rig.broker.names |= {"team.x"}
    assert json.decode(rig.reply("GET", "/v1/topics", key="team").body) == {"topics": ["team.x"]}


def test_overload_has_facts_beside_its_text() -> None:
    """inv1: 59"""
    reply = error_reply(OverloadedError("partition_buffer_full", 1500))
    assert (reply.status, dict(reply.headers)[b"retry-after"]) == (429, b"2")
    assert json.decode(reply.body) == {
        "error": "RESOURCE_EXHAUSTED",
        "message": "producer overload: partition_buffer_full",
        "reason": "overloaded",
        "retry_after_ms": 1500,
        "limit": "partition_buffer_full",
    }


def test_a_failed_write_is_500_and_a_full_disk_and_a_stopped_log_are_503() -> None:
    assert error_reply(InternalError("an I/O error")).status == 500
    full = error_reply(DiskFullError("no space"))
    assert (full.status, dict(full.headers)[b"retry-after"]) == (503, b"1")
    assert json.decode(full.body)["error"] == "UNAVAILABLE"
    stopped = error_reply(ShardStoppedError("sync failed"))
    assert (stopped.status, dict(stopped.headers)[b"retry-after"]) == (503, b"1")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "name is required"),
        ({"name": " \t"}, "name is required"),
        ({"name": "a\x00b"}, "invalid name"),
        ({"name": "a\x7fb"}, "invalid name"),
        ({"name": "x" * 256}, "invalid name"),
        ({"name": "é" * 128}, "invalid name"),
        ({"name": "a", "partitions": -1}, "invalid partitions"),
        ({"name": "a", "partitions": 1025}, "invalid partitions"),
    ],
)
def test_topics_that_cannot_be(body: object, message: str) -> None:
    """inv1: 13"""
    rig = BrokerRig()
    assert rig.message(rig.post("/v1/topics", body)) == message
    assert rig.broker.created == []


def test_topics_of_the_broker_are_only_read_through_the_other_api() -> None:
    rig = BrokerRig()
    assert rig.code("PUT", "/v0/topics/@new", {}) == (400, "invalid_request")
    assert rig.code("PATCH", "/v0/topics/@new", {}) == (400, "invalid_request")
    assert rig.code("POST", "/v0/topics/@t", {"records": [{"data": 1}]}) == (409, "read_only")
    assert rig.code("DELETE", "/v0/topics/@t") == (409, "read_only")
    assert rig.code("POST", "/v0/topics/@t/delete", {"from_seq": 1, "to_seq": 2}) == (409, "read_only")
    assert rig.code("POST", "/v0/topics/@t/claim", {"node": "n"}) == (409, "read_only")
    rig.ok("PUT", "/v0/topics/own", {})
    assert rig.code("PUT", "/v0/routers/r", {"source": "own", "dest": "@t"}) == (409, "read_only")
    assert rig.code("PUT", "/v0/routers/r", {"source": "@t", "dest": "own"}) == (400, "invalid_request")
    assert rig.code("PUT", "/v0/topics/q", {"type": "queue", "dead_letter": "@t"}) == (409, "read_only")
    assert rig.code("PATCH", "/v0/topics/own", {"dead_letter": "@t"}) == (409, "read_only")
    assert rig.code("GET", "/v0/topics/@t") == (404, "topic_not_found")
