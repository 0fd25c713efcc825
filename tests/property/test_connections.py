"""However a connection's bytes are cut into reads, it says the same; and whatever they are, it can be ended."""

import gzip
import re
from itertools import pairwise

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from hypothesis import given, settings
from hypothesis import strategies as st

from driftq.http.answer import Sink, StreamAnswer
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.transport.connection import PREFACE
from driftq.http.transport.head_cache import Finder, Heads
from tests.unit.http.sources import Voice
from tests.unit.http.wire import Peer, get


class Brief(Voice):
    """A stream that ends as it begins."""

    def opened(self, sink: Sink) -> None:
        super().opened(sink)
        sink.close()


def handle(request: Request) -> Reply | StreamAnswer:
    if request.path == "/stream":
        return StreamAnswer(Brief(b"event"))
    if request.oversized:
        return Reply(413)
    told = f"{request.method} {request.path}?{request.query} {request.headers} {request.fault} "
    return Reply(200, told.encode() + request.body)


def post(path: str, body: bytes, *headers: str) -> bytes:
    return get(path, f"Content-Length: {len(body)}", *headers, method="POST") + body


ONE = [
    get("/a"),
    get("/a", method="HEAD"),
    get("/a?b"),
    get("/a", "Connection: upgrade", "Upgrade: h3"),
    b"\r\n" + get("/a"),
    b"\r\n\r\nGET /a HTTP/1.1\r\n\r\n",
    post("/b", b"x" * 100),
    post("/b", b"y" * 100),
    post("/b", b"y" * 100, "X-A: b"),
    post("/b", b"x" * 99),
    post("/b", b"\r\n\r\n" + get("/a"), "Expect: 100-continue"),
    post("/b", gzip.compress(b"x" * 100, mtime=0), "Content-Encoding: gzip"),
    post("/b", b"no gzip", "Content-Encoding: gzip"),
    get("/c", "Transfer-Encoding: chunked", method="POST") + b"3\r\nabc\r\n0\r\nt: u\r\n\r\n",
    get("/stream"),
    get("/stream", method="HEAD"),
]
LAST = [
    b"",
    b"nonsense\r\n\r\n",
    get("/a", "Connection: close"),
    get("/stream", version="1.0"),
    post("/b", b"x" * 2000),
    get("/c", "Transfer-Encoding: chunked", method="POST") + b"fffff\r\n" + b"x" * 3000,
]


_FRESH_ID = re.compile(rb"(x-request-id(?:: |', b?'))[0-9a-f]{24}")
"""An id that the server made up, in a head of HTTP/1 or as the client of HTTP/2 shows it: every request has another."""


class NoHeads(Heads):
    """Learns nothing, so that every head is parsed."""

    def learn(self, raw: bytes, target: bytes, request: Request, shortcut: Finder | None = None) -> None:
        pass


def said(data: bytes, cuts: list[int], heads: Heads | None = None) -> tuple[bytes, bool, bool]:
    peer = Peer(handle)
    if heads is not None:
        peer.serving.heads = heads
    edges = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    for start, end in pairwise(edges):
        peer.send(data[start:end])
    return _FRESH_ID.sub(rb"\1the id", peer.received), peer.transport.ended, peer.transport.closed


@settings(max_examples=150, deadline=None)
@given(
    several=st.lists(st.sampled_from(ONE), max_size=8),
    last=st.sampled_from(LAST),
    cuts=st.lists(st.integers(0, 10_000), max_size=12),
)
def test_http_1(several: list[bytes], last: bytes, cuts: list[int]) -> None:
    data = b"".join(several) + last
    parsed = said(data, [], NoHeads())
    assert said(data, cuts, NoHeads()) == parsed
    heads = Heads()
    for _ in range(2):  # some heads are known in the second time that were learned in the first
        assert said(data, cuts, heads) == said(data, [], heads) == parsed


@pytest.mark.parametrize("one", ONE, ids=range(len(ONE)))
def test_a_known_head_says_what_a_parsed_one_says(one: bytes) -> None:
    heads = Heads()
    said(one, [], heads)
    for cut in range(len(one)):
        assert said(one + one, [cut, len(one) + cut], heads) == said(one + one, [], NoHeads())


def frames(paths: list[str]) -> bytes:
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    for path in paths:
        number = client.get_next_available_stream_id()
        head = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "h")]
        client.send_headers(number, head)
        client.send_data(number, b"x" * 100, end_stream=True)
    return client.data_to_send()


def heard(data: bytes) -> dict[int, bytes]:
    """What a client makes of a server's bytes: heads and bodies by stream."""
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    for _ in range(10):
        number = client.get_next_available_stream_id()
        client.send_headers(number, [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "h")])
    found: dict[int, bytes] = {}
    for event in client.receive_data(data):
        number = getattr(event, "stream_id", 0) or 0
        told = getattr(event, "data", None) or repr(getattr(event, "headers", type(event).__name__)).encode()
        told = _FRESH_ID.sub(rb"\1the id", told)
        found[number] = found.get(number, b"") + (told if number else b"")
    return found


@settings(max_examples=50, deadline=None)
@given(
    paths=st.lists(st.sampled_from(["/a", "/stream", "/b?c"]), max_size=8),
    cuts=st.lists(st.integers(0, 10_000), max_size=12),
)
def test_http_2(paths: list[str], cuts: list[int]) -> None:
    data = frames(paths)
    assert heard(said(data, cuts)[0]) == heard(said(data, [])[0])


@settings(max_examples=300, deadline=None)
@given(
    parts=st.lists(
        st.one_of(
            st.binary(max_size=200),
            st.sampled_from([*ONE, *LAST, PREFACE, frames(["/a"]), frames(["/stream", "/b"])[len(PREFACE) :]]),
            st.builds(lambda kind, flags, body: frame(kind, flags, body), *3 * [st.integers(0, 255)]),
        ),
        max_size=10,
    )
)
def test_whatever_comes_nothing_is_raised_and_the_server_can_go(parts: list[bytes]) -> None:
    peer = Peer(handle)
    for part in parts:
        if peer.transport.is_closing():
            break
        peer.send(part)
    peer.peers.finish()
    peer.turn()
    peer.runtime.advance(10_000)
    assert peer.transport.is_closing()
    peer.lose()
    assert len(peer.peers) == 0


def frame(kind: int, flags: int, body: int) -> bytes:
    """A frame of HTTP/2 whose head is in order."""
    return body.to_bytes(3, "big") + bytes([kind % 12, flags, 0, 0, 0, body % 4]) + bytes(range(body))
