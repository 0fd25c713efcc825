"""Both clients read streams of servers that break every rule: a clear error, or another connection; never an item."""

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import Any

import pytest

from driftq.client import AsyncClient, Client, Delivery, ProtocolError, TransportError, messages
from driftq.client.topics import watch
from driftq.client.transport import event_stream
from driftq.model.v0_answers import Record
from driftq.system.http_client import http1
from tests.acceptance.test_client_hostile import BROKEN, TIMEOUT_S, call
from tests.support.hostile_server import CERTIFICATE, Play, heard, hostile, reply, says

KINDS = pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
STREAMS = pytest.mark.parametrize("stream", ["consume", "watch"])
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
SESSION = (
    b'{"wid":"w","stream_url":"/v0/watch/w","session_ttl_ms":1,"performance":{"server_total_ms":1},'
    b'"topics":{"t":{"from_seq":0,"head_seq":1,"earliest_seq":1}}}'
)
DELIVERY = b'{"partition":0,"offset":7,"attempts":1,"key":"","value":"right"}\n'
EVENT = (
    b"id: 1\nevent: record\n"
    b'data: {"topic":"t","from_seq":0,"to_seq":1,"records":[{"$seq":1,"$ts":1,"data":"right"}]}\n\n'
)

OPENED = {
    name
    for name in BROKEN
    if "body" in name or "chunk" in name  # the head of the answer is right, so the stream is open when it breaks
}
ENDLESS = {"it drips"}  # its head comes too slowly, and its body is never silent


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def streaming(stream: str, broken: Play, times: int = 1) -> Play:
    """A server whose stream is broken on its first connections, and right on those after them."""
    begun: list[int] = []

    def play(connection: socket.socket, number: int) -> None:
        if stream == "watch" and number == 0:
            heard(connection)
            connection.sendall(reply(SESSION, b"connection: close\r\n"))
            return
        begun.append(number)
        if len(begun) <= times:
            broken(connection, number)
            return
        heard(connection)
        connection.sendall(CHUNKED + chunk(DELIVERY if stream == "consume" else EVENT))
        connection.recv(1)

    return play


def first(kind: str, stream: str, url: str) -> str:
    """The value of what the stream yields first."""

    def opened(client: Client | AsyncClient) -> Any:
        return client.broker.consume("t", "g") if stream == "consume" else client.watch({"t": 0})

    async def use() -> Any:
        async with AsyncClient(url, timeout=TIMEOUT_S, retries=0) as client, opened(client) as items:
            return await anext(items)

    def use_blocking() -> Any:
        with Client(url, timeout=TIMEOUT_S, retries=0) as client, opened(client) as items:
            return next(items)

    found = use_blocking() if kind == "blocking" else asyncio.run(use())
    if isinstance(found, Delivery):
        return found.value
    assert isinstance(found.item, Record)
    return str(found.item.data)


@KINDS
@STREAMS
@pytest.mark.parametrize("name", sorted(BROKEN.keys() - OPENED))
def test_a_server_that_is_broken_before_a_stream_begins_is_a_clear_error(name: str, stream: str, kind: str) -> None:
    with (
        hostile(streaming(stream, BROKEN[name], 99)) as url,
        pytest.raises(TransportError, match="no answer") as failed,
    ):
        first(kind, stream, url)
    assert failed.value.__cause__ is not None


@KINDS
def test_a_server_that_is_broken_when_a_watch_begins_is_a_clear_error(kind: str) -> None:
    with hostile(BROKEN["it hangs up in its body"]) as url, pytest.raises(TransportError, match="no answer"):
        first(kind, "watch", url)


@KINDS
@STREAMS
@pytest.mark.parametrize("name", sorted(OPENED - ENDLESS))
def test_a_stream_that_breaks_is_opened_again_and_nothing_of_it_is_an_item(
    name: str, stream: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "_SILENCE_S", 0.3)
    monkeypatch.setattr(watch, "_SILENCE_S", 0.3)
    with hostile(streaming(stream, BROKEN[name])) as url:
        assert first(kind, stream, url) == "right"


@KINDS
@STREAMS
@pytest.mark.parametrize("said", [b"<html>\n\n", b"id: 1\nevent: record\ndata: {\n\n", b"event: \xff\ndata: 1\n\n"])
def test_a_stream_of_something_else_is_a_protocol_error(said: bytes, stream: str, kind: str) -> None:
    if stream == "watch" and b"data" not in said:
        said = b"event: record\ndata: <html>\n\n"
    broken = says(CHUNKED + chunk(said), linger=True)
    with hostile(streaming(stream, broken, 99)) as url, pytest.raises(ProtocolError, match="not from a DriftQ server"):
        first(kind, stream, url)


def endless(connection: socket.socket, _: int) -> None:
    heard(connection)
    connection.sendall(CHUNKED)
    while True:
        connection.sendall(chunk(b"x" * 65536))


@KINDS
@STREAMS
def test_a_frame_without_an_end_is_a_protocol_error_that_names_the_limit(
    stream: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "FRAME_BYTES_MAX", 1 << 20)
    with (
        hostile(streaming(stream, endless, 99)) as url,
        pytest.raises(ProtocolError, match="longer than 1048576 bytes"),
    ):
        first(kind, stream, url)


@KINDS
def test_a_body_without_an_end_is_a_protocol_error_that_names_the_limit(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http1, "BODY_BYTES_MAX", 1 << 20)
    with hostile(endless) as url, pytest.raises(ProtocolError, match="longer than 1048576 bytes") as failed:
        call(kind, url)
    assert failed.value.__cause__ is not None


@KINDS
@pytest.mark.parametrize("through_proxy", [False, True], ids=["straight", "by proxy"])
@pytest.mark.parametrize(
    "name", ["it hangs up", "it hangs up in its body", "it says garbage", "its head has no end", "it says nothing"]
)
def test_a_broken_server_is_a_clear_error_with_tls(name: str, kind: str, *, through_proxy: bool) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)

    def play(connection: socket.socket, number: int) -> None:
        if through_proxy:
            heard(connection)
            connection.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
        with suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
            BROKEN[name](secured, number)

    with hostile(play) as url, pytest.raises(TransportError, match="no answer") as failed:
        call(kind, url.replace("http:", "https:"), ca_file=CERTIFICATE, proxy=url if through_proxy else None)
    assert failed.value.sent


@KINDS
@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 407 Who\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\n\r\nnot TLS",
        b"",
    ],
    ids=["refuses", "endless head", "not TLS", "hangs up"],
)
def test_a_broken_proxy_is_a_clear_error(said: bytes, kind: str) -> None:
    with hostile(says(said)) as url, pytest.raises(TransportError, match="cannot be reached") as failed:
        call(kind, "https://127.0.0.1:1", proxy=url)
    assert not failed.value.sent
