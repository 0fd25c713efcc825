"""Every answer has the id of its request: on both APIs, over every protocol, whatever its status."""

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest

from driftq.http.answer import StreamAnswer, Upgrade
from driftq.http.request import Request
from driftq.http.request_id import fresh, id_of
from driftq.http.transport.asgi import Asgi, Event
from driftq.http.transport.connection import ServerConnection
from driftq.http.transport.connection_context import Serving, Terms
from driftq.http.transport.head_cache import HEADS_KEPT_MAX
from driftq.system.runtime import AsyncioRuntime
from driftq.testing import ServerRig
from tests.unit.http.sources import Talk, Voice
from tests.unit.http.transport.h2.test_h2_connection import Client as Http2Client
from tests.unit.http.wire import Peer, Transport, echo, get

FRESH = re.compile(rb"[0-9a-f]{24}")
CALLS = [
    ("GET", "/v0/health", b"", 200),
    ("GET", "/healthz", b"", 200),
    ("GET", "/v0/ready", b"", 200),
    ("GET", "/v0/metrics", b"", 200),
    ("GET", "/openapi.json", b"", 200),
    ("PUT", "/v0/topics/t", b"{}", 201),
    ("POST", "/v0/topics/t", b'{"records":[{"data":1}]}', 200),
    ("POST", "/v0/topics/t", b'{"records":1}', 400),
    ("POST", "/v0/topics/t/diff", b"{}", 200),
    ("POST", "/v0/topics/none/diff", b"{}", 404),
    ("PATCH", "/v0/health", b"", 405),
    ("GET", "/v0/none", b"", 404),
    ("GET", "/v1/healthz", b"", 200),
    ("GET", "/metrics", b"", 200),
    ("POST", "/v1/topics", b'{"name":"b","partitions":1}', 201),
    ("POST", "/v1/produce", b'{"topic":"b","value":"v"}', 200),
    ("POST", "/v1/produce", b"{}", 400),
    ("PUT", "/v1/topics", b"", 405),
    ("GET", "/nowhere", b"", 404),
]


class Wire:
    """A connection to the server of a rig."""

    def __init__(self, rig: ServerRig) -> None:
        self.rig = rig
        self.serving = Serving(rig.app.handle, rig.runtime, Terms(body_bytes_max=1 << 20), rig.app.shortcut)
        self.transport = Transport()
        connection = ServerConnection(self.serving)
        self.transport.set_protocol(connection)
        connection.connection_made(self.transport)

    def ask(self, method: str, path: str, body: bytes = b"", *headers: str) -> tuple[int, bytes]:
        """Status and id of the answer."""
        before = len(self.transport.writes)
        lines = [f"Content-Length: {len(body)}", "Content-Type: application/json", *headers]
        protocol: Any = self.transport.get_protocol()
        protocol.data_received(get(path, *lines, method=method) + body)
        self.rig.run()
        head = b"".join(self.transport.writes[before:]).partition(b"\r\n\r\n")[0]
        (named,) = re.findall(rb"\r\nx-request-id: ([^\r]*)", head)
        return int(head.split()[1]), named


@pytest.fixture
def wire() -> Iterator[Wire]:
    rig = ServerRig()
    yield Wire(rig)
    rig.close()


def test_every_answer_of_both_apis_has_an_id(wire: Wire) -> None:
    """inv1: 5"""
    seen = set()
    for method, path, body, status in CALLS:
        found, given = wire.ask(method, path, body)
        assert (found, bool(FRESH.fullmatch(given))) == (status, True), (method, path)
        seen.add(given)
        assert wire.ask(method, path, body, "X-Request-Id:  mine.1 ")[1] == b"mine.1"
    assert len(seen) == len(CALLS)


def test_a_write_by_the_short_way_has_an_id_of_its_own(wire: Wire) -> None:
    wire.ask("PUT", "/v0/topics/t", b"{}")
    ids = [wire.ask("POST", "/v0/topics/t", b'{"records":[{"data":1}]}')[1] for _ in range(5)]
    assert len(set(ids)) == 5
    assert all(FRESH.fullmatch(one) for one in ids)


def test_names_of_requests_do_not_push_heads_out_of_memory(wire: Wire) -> None:
    wire.ask("GET", "/v0/health")
    kept = len(wire.serving.heads)
    for number in range(HEADS_KEPT_MAX + 1):
        assert wire.ask("GET", "/v0/health", b"", f"X-Request-Id: {number}")[1] == b"%d" % number
    assert len(wire.serving.heads) == kept > 0


@pytest.mark.parametrize("given", ["a", "~" * 128, "trace:1/2+3=,;{}[]()<>@!#$%&*|^?\\", "00-4bf92f-01"])
def test_a_name_that_can_be_used_comes_back(wire: Wire, given: str) -> None:
    assert wire.ask("GET", "/v0/health", b"", f"X-Request-Id: {given}")[1] == given.encode()


@pytest.mark.parametrize("given", ["", "a b", 'a"b', "a'b", "x" * 129, "caf\xe9", "a\tb"])
def test_a_name_that_cannot_be_used_is_replaced(wire: Wire, given: str) -> None:
    for path in ("/v0/health", "/v1/healthz"):
        assert FRESH.fullmatch(wire.ask("GET", path, b"", f"X-Request-Id: {given}")[1])


def test_a_request_keeps_its_id() -> None:
    request = Request("GET", "/a")
    assert id_of(request) == id_of(request)
    assert fresh() != fresh()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /a HTTP/1.1\r\nX-Request-Id: mine\r\n" + b"a: b\r\n" * 201 + b"\r\n", 431),
        (b"GET /a HTTP/1.1\r\nX-Request-Id: mine\r\nContent-Length: 9999999\r\n\r\n", 200),
        (b"POST /v1/x HTTP/1.1\r\nX-Request-Id: mine\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    ],
)
def test_what_a_connection_refuses_has_the_id(sent: bytes, status: int) -> None:
    peer = Peer()
    peer.send(sent)
    assert peer.received.startswith(b"HTTP/1.1 %d" % status)
    assert b"\r\nx-request-id: mine\r\n" in peer.received


def test_what_is_not_http_and_who_is_one_too_many_get_an_id() -> None:
    peer = Peer(connections_max=1)
    second = peer.another()
    peer.send(b"nonsense\r\n\r\n")
    for received in (peer.received, b"".join(second.writes)):
        assert re.search(rb"\r\nx-request-id: [0-9a-f]{24}\r\n", received)


def test_streams_and_sockets_begin_with_the_id() -> None:
    peer = Peer(lambda _: StreamAnswer(Voice()))
    peer.send(get("/s", "X-Request-Id: mine"))
    assert b"\r\nx-request-id: mine\r\n" in peer.received
    peer = Peer(lambda _: Upgrade(Talk()))
    handshake = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
    peer.send(get("/ws", *handshake, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "X-Request-Id: mine"))
    assert peer.received.startswith(b"HTTP/1.1 101")
    assert b"\r\nx-request-id: mine\r\n" in peer.received


def test_http_2_has_the_same_ids() -> None:
    client = Http2Client()
    plain, named = client.ask("/a"), client.ask("/a", ("x-request-id", "mine"))
    assert FRESH.fullmatch(client.heads[plain][b"x-request-id"])
    assert client.heads[named][b"x-request-id"] == b"mine"
    refused = client.ask("/a", ("x-request-id", "mine"), *[("a", "b")] * 201)
    assert (client.heads[refused][b":status"], client.heads[refused][b"x-request-id"]) == (b"431", b"mine")
    streams = Http2Client(lambda _: StreamAnswer(Voice()))
    number = streams.ask("/s", ("x-request-id", "mine"))
    assert streams.heads[number][b"x-request-id"] == b"mine"


def test_asgi_has_the_same_ids() -> None:
    async def asked(kind: str, handle: Any) -> list[tuple[bytes, bytes]]:
        serving = Serving(handle, AsyncioRuntime(asyncio.get_running_loop()), Terms(body_bytes_max=100))
        coming: asyncio.Queue[Event] = asyncio.Queue()
        coming.put_nowait({"type": f"{kind}.request"})
        sent: list[Event] = []

        async def send(event: Event) -> None:
            sent.append(event)
            coming.put_nowait({"type": f"{kind}.disconnect"})

        scope = {"type": kind, "method": "GET", "path": "/a", "headers": [(b"X-Request-Id", b"mine")]}
        await asyncio.wait_for(Asgi(serving)(scope, coming.get, send), 10)
        found: list[tuple[bytes, bytes]] = sent[0]["headers"]
        return found

    for kind, handle in (
        ("http", echo),
        ("http", lambda _: StreamAnswer(Voice())),
        ("websocket", lambda _: Upgrade(Talk())),
    ):
        assert (b"x-request-id", b"mine") in asyncio.run(asked(kind, handle))
