"""What the log says of requests."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from driftq.http.metrics.request_log import EACH_MAX, RequestLog
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.transport.connection import ServerConnection
from driftq.http.transport.connection_context import Serving, Terms
from driftq.system.log_facts import FACTS
from driftq.system.log_repeats import WINDOW_MS
from driftq.testing import FaultyDisk, ServerRig
from tests.unit.http.transport.h2.test_h2_connection import Client as Http2Client
from tests.unit.http.wire import Transport, get

SLOW_MS = 1000
SECRET = "the-secret-of-a-key"
ONE = b'{"records":[{"data":"payload-7"}]}'


class _Known(Transport):
    """A connection whose peer has an address."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.1.2.3", 4567) if name == "peername" else default


class Wire:
    """A server with a request log, and one connection to it."""

    def __init__(self, caplog: pytest.LogCaptureFixture, *, access_log: bool = False, **options: Any) -> None:
        caplog.set_level(logging.INFO)
        self._caplog = caplog
        self.rig = rig = ServerRig(slow_request_ms=SLOW_MS, access_log=access_log, **options)
        rig.clock.advance(1)  # at 0 no request has begun
        requests = RequestLog(rig.runtime, rig.clock, slow_ms=SLOW_MS, access_log=access_log)
        self.serving = Serving(rig.app.handle, rig.runtime, Terms(body_bytes_max=1 << 20), rig.app.shortcut, requests)
        self.transport = _Known()
        connection = ServerConnection(self.serving)
        self.transport.set_protocol(connection)
        connection.connection_made(self.transport)

    def send(self, method: str, path: str, body: bytes = b"", *headers: str) -> None:
        """Send a request; no turn of the loop has run."""
        lines = [f"Content-Length: {len(body)}", "Content-Type: application/json", *headers]
        protocol: Any = self.transport.get_protocol()
        protocol.data_received(get(path, *lines, method=method) + body)

    def ask(self, method: str, path: str, body: bytes = b"", *headers: str) -> None:
        self.send(method, path, body, *headers)
        self.rig.run()

    def lines(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Level, message and facts of the lines about requests since it was asked last."""
        found = [
            (record.levelname, record.getMessage(), getattr(record, FACTS, {}))
            for record in self._caplog.records
            if record.name in ("driftq.http", "driftq.access")
        ]
        assert SECRET not in self._caplog.text + repr(found)
        assert "payload-7" not in self._caplog.text + repr(found)
        self._caplog.clear()
        return found


@pytest.fixture
def wire(caplog: pytest.LogCaptureFixture) -> Iterator[Wire]:
    wire = Wire(caplog)
    yield wire
    wire.rig.close()


def test_refusals_are_one_line_per_reason_and_minute(wire: Wire) -> None:
    for _ in range(3):
        wire.ask("POST", "/v0/topics/none/diff", b"{}", "X-Request-Id: mine")
        wire.ask("GET", "/v1/none")
    (_, message, first), (_, _, second) = wire.lines()
    assert (message, first["reason"], first["count"], first["status"]) == (
        "requests refused",
        "topic_not_found",
        1,
        404,
    )
    assert (first["request_id"], first["method"], first["path"]) == ("mine", "POST", "/v0/topics/none/diff")
    assert first["peer"] == "10.1.2.3:4567"
    assert (second["reason"], second["status"]) == ("NOT_FOUND", 404)
    wire.rig.runtime.advance(WINDOW_MS)
    assert [(line["reason"], line["count"]) for _, _, line in wire.lines()] == [
        ("topic_not_found", 2),
        ("NOT_FOUND", 2),
    ]


def test_a_limit_is_part_of_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    wire = Wire(caplog, limits={"topics_max": 1, "routers_max": 1})
    for name in "abc":
        wire.ask("PUT", f"/v0/topics/{name}", b"{}")
    ((level, _, line),) = wire.lines()
    assert (level, line["reason"], line["limit"], line["status"]) == ("WARNING", "throttled", "max_topics", 429)
    wire.rig.close()


def test_failed_authentication_has_the_address_and_never_the_key(caplog: pytest.LogCaptureFixture) -> None:
    """row: F-AUTH-1"""
    wire = Wire(caplog, keys=f"{SECRET}:read,other")
    wire.ask("GET", "/v0/topics", b"", f"Authorization: Bearer {SECRET}x")
    wire.ask("GET", f"/v0/ws?token={SECRET}x")
    wire.ask("PUT", "/v0/topics/t", b"{}", f"Authorization: Bearer {SECRET}")
    wire.ask("GET", "/v1/topics")
    found = wire.lines()
    assert [(level, message) for level, message, _ in found] == [("WARNING", "authentication failed")] * 3
    assert [(line["reason"], line.get("key"), line["peer"]) for _, _, line in found] == [
        ("unauthorized", None, "10.1.2.3:4567"),
        ("forbidden", 1, "10.1.2.3:4567"),
        ("UNAUTHENTICATED", None, "10.1.2.3:4567"),
    ]
    wire.rig.close()


@pytest.mark.parametrize("short", [True, False])
def test_every_failure_has_a_line_with_its_request_id(caplog: pytest.LogCaptureFixture, short: bool) -> None:
    """Both ways of a write, the short one and the long one."""
    broken = [False]
    wire = Wire(
        caplog,
        wrap=lambda disk: FaultyDisk(
            disk, forever=True, when=lambda operation, path: broken[0] and operation == "pwritev" and "wal" in path
        ),
    )
    wire.ask("PUT", "/v0/topics/t", b'{"durability":"fsync"}')
    wire.ask("POST", "/v0/topics/t", ONE)
    broken[0] = True
    named = () if short else ("X-Request-Id: mine",)
    for _ in range(3):
        wire.ask("POST", "/v0/topics/t", ONE, *named)
    found = [(level, line) for level, message, line in wire.lines() if message == "request failed"]
    assert len(found) == 3
    written = b"".join(wire.transport.writes)
    for level, line in found:
        assert (level, line["status"], line["method"], line["path"]) == ("ERROR", 500, "POST", "/v0/topics/t")
        assert b"x-request-id: " + line["request_id"].encode() in written
        assert line["error"]
    assert len({line["request_id"] for _, line in found}) == (3 if short else 1)


def test_a_bug_is_logged_with_its_trace_and_the_id_of_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    wire = Wire(caplog)

    def broken() -> None:
        raise ZeroDivisionError

    wire.rig.server.health = broken  # type: ignore[method-assign,assignment]
    wire.ask("GET", "/v0/health", b"", "X-Request-Id: mine")
    traced = next(record for record in caplog.records if record.exc_info)
    assert getattr(traced, FACTS) == {"request_id": "mine"}
    ((level, message, line),) = wire.lines()
    assert (level, message, line["reason"], line["request_id"]) == ("ERROR", "request failed", "internal", "mine")


def test_a_storm_of_failures_is_cut_off_and_counted(wire: Wire) -> None:
    requests, failure = wire.serving.requests, Reply(503, b'{"error":{"code":"not_ready","message":"wait"}}')
    for _ in range(EACH_MAX + 10):
        requests.answered(Request("GET", "/v0/topics"), failure)
    found = wire.lines()
    assert len(found) == EACH_MAX
    assert {level for level, _, _ in found} == {"WARNING"}
    requests.close()
    assert [line["count"] for _, _, line in wire.lines()] == [10]


@pytest.mark.parametrize("short", [True, False])
def test_slow_requests_are_logged(wire: Wire, short: bool) -> None:
    """row: F-SLOW-1"""
    wire.ask("PUT", "/v0/topics/t", b'{"durability":"fsync"}')
    wire.ask("POST", "/v0/topics/t", ONE)
    assert wire.lines() == []
    wire.send("POST", "/v0/topics/t", ONE, *(() if short else ("X-Request-Id: mine",)))
    wire.rig.clock.advance(SLOW_MS + 5)
    wire.rig.run()
    ((level, message, line),) = wire.lines()
    assert (level, message, line["ms"], line["path"]) == ("WARNING", "slow request", SLOW_MS + 5, "/v0/topics/t")


def test_a_long_poll_is_never_slow(wire: Wire) -> None:
    wire.ask("PUT", "/v0/topics/t", b"{}")
    wire.send("POST", "/v0/topics/t/diff", b'{"wait_ms":20000}')
    wire.rig.runtime.advance(20_000)
    assert b'"caught_up":true' in wire.transport.writes[-1]
    assert wire.lines() == []


def test_an_access_log_has_every_request(caplog: pytest.LogCaptureFixture) -> None:
    wire = Wire(caplog, access_log=True, keys=f"other,{SECRET}")
    key = f"Authorization: Bearer {SECRET}"
    wire.ask("PUT", "/v0/topics/t", b"{}", key)
    for _ in range(3):
        wire.ask("POST", "/v0/topics/t?return_seqs=false", ONE, key)
    wire.ask("GET", "/v1/healthz?token=hidden")
    found = [line for _, message, line in wire.lines() if message == "request"]
    assert [(line["method"], line["path"], line["status"], line.get("key")) for line in found] == [
        ("PUT", "/v0/topics/t", 201, 2),
        *[("POST", "/v0/topics/t", 200, 2)] * 3,
        ("GET", "/v1/healthz", 200, None),
    ]
    assert all(line["bytes"] > 0 and line["request_id"] and line["peer"] for line in found)
    wire.rig.close()


def test_what_a_connection_refuses_is_logged_too(wire: Wire) -> None:
    protocol: Any = wire.transport.get_protocol()
    protocol.data_received(b"GET /v0/topics?token=hidden HTTP/1.1\r\n" + b"a: b\r\n" * 201 + b"\r\n")
    ((_, _, line),) = wire.lines()
    assert (line["reason"], line["status"], line["path"]) == ("invalid_request", 431, "/v0/topics")


def test_http_2_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    client = Http2Client(lambda _: Reply(404, b'{"error":{"code":"not_found","message":"no"}}'))
    client.ask("/v0/a", ("x-request-id", "mine"))
    client.ask("/v0/a", *[("a", "b")] * 201)
    found = [getattr(record, FACTS) for record in caplog.records]
    assert [(line["reason"], line["status"]) for line in found] == [("not_found", 404), ("invalid_request", 431)]
    assert found[0]["request_id"] == "mine"


def test_an_answer_that_is_not_json_has_a_line_all_the_same(wire: Wire) -> None:
    wire.serving.requests.answered(Request("GET", "/a"), Reply(502, b"<html>"), asyncio.Transport())
    ((_, _, line),) = wire.lines()
    assert (line["reason"], line["status"], "peer" in line) == ("unknown", 502, False)
