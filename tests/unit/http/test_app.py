"""Routes, envelopes, and the two probes."""

import logging

import pytest
from msgspec import json

from driftq import __version__
from driftq.config import Settings
from driftq.http.app import App
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.server import Server
from driftq.testing import ManualClock, ManualRuntime, OrderCheckingDisk, SimDisk


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def runtime(clock: ManualClock) -> ManualRuntime:
    return ManualRuntime(clock)


@pytest.fixture
def server(clock: ManualClock, runtime: ManualRuntime) -> Server:
    return Server(Settings(data_dir="/data"), OrderCheckingDisk(SimDisk()), clock, runtime)


def ask(server: Server, path: str, method: str = "GET") -> tuple[Reply, dict[str, object]]:
    answer = App(server).handle(Request(method, path))
    assert isinstance(answer, Reply)
    return answer, json.decode(answer.body, type=dict[str, object])


@pytest.mark.parametrize("path", ["/v0/health", "/healthz"])
def test_health_tells_status_version_and_uptime(server: Server, clock: ManualClock, path: str) -> None:
    clock.advance(1234)
    reply, body = ask(server, path)
    assert (reply.status, reply.content_type) == (200, b"application/json")
    assert body == {"status": "ok", "version": __version__, "uptime_ms": 1234}


@pytest.mark.parametrize("path", ["/v0/ready", "/readyz"])
def test_ready_tells_how_many_topics_there_are(server: Server, path: str) -> None:
    reply, body = ask(server, path)
    assert reply.status == 200
    assert body == {"status": "ready", "wal_replay_complete": True, "topics": 0}


@pytest.mark.parametrize("path", ["/v0/ready", "/readyz"])
def test_a_server_that_is_closing_is_healthy_and_not_ready(server: Server, runtime: ManualRuntime, path: str) -> None:
    closing = server.close()
    reply, body = ask(server, path)
    assert (reply.status, dict(reply.headers)[b"retry-after"]) == (503, b"1")
    assert isinstance(body["error"], dict)
    assert body["error"]["code"] == "shutting_down"
    assert ask(server, "/healthz")[0].status == 200
    runtime.advance(1000)
    assert closing.result()


@pytest.mark.parametrize("path", ["/v0", "/v0/nope", "/v0/health/", "/healthz/"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
def test_an_unknown_path_is_404_whatever_the_method(server: Server, path: str, method: str) -> None:
    reply, body = ask(server, path, method)
    assert reply.status == 404
    assert isinstance(body["error"], dict)
    assert body["error"]["code"] == "not_found"


@pytest.mark.parametrize("path", ["/", "/V0/health", "/v1x", "/produce", "", "/v2/topics"])
def test_an_unversioned_path_is_the_brokers_to_refuse(server: Server, path: str) -> None:
    reply, body = ask(server, path)
    assert (reply.status, body) == (404, {"error": "NOT_FOUND", "message": "use /v1/* endpoints"})


@pytest.mark.parametrize("path", ["/v0/health", "/healthz", "/v0/ready", "/readyz"])
def test_a_known_path_with_another_method_is_405(server: Server, path: str) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        reply, body = ask(server, path, method)
        assert reply.status == 405
        assert dict(reply.headers)[b"allow"] == b"GET, HEAD"
        assert isinstance(body["error"], dict)
        assert body["error"]["code"] == "method_not_allowed"
    assert ask(server, path, "HEAD")[0].status == 200


def test_a_bug_is_a_500_that_tells_nothing_and_a_log_line_that_tells_all(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("inside")

    monkeypatch.setattr(server, "health", broken)
    with caplog.at_level(logging.ERROR):
        reply, body = ask(server, "/healthz")
    assert reply.status == 500
    assert isinstance(body["error"], dict)
    assert body["error"]["code"] == "internal"
    assert b"inside" not in reply.body
    assert "inside" in caplog.text
