"""Streams and sockets of a real server: clients that go, that vanish, and that do not read."""

import socket
import struct
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from tests.support.process import PATIENCE_S, ServerProcess, serving
from tests.support.waiting import until

pytestmark = pytest.mark.slow

HANDSHAKE = (
    b"GET /v0/ws HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with serving(tmp_path) as found:
        found.wait_ready()
        yield found


def post(server: ServerProcess, path: str, value: object) -> Any:
    connection = HTTPConnection(server.address, timeout=PATIENCE_S)
    try:
        connection.request("POST", path, json.encode(value), {"content-type": "application/json"})
        reply = connection.getresponse()
        assert reply.status in (200, 201), reply.read()
        return json.decode(reply.read())
    finally:
        connection.close()


def write(server: ServerProcess, topic: str, *values: object) -> None:
    post(server, f"/v0/topics/{topic}", {"records": [{"data": value} for value in values]})


def connect(server: ServerProcess, *, receive_buffer: int | None = None) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    peer = socket.socket()
    if receive_buffer is not None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    peer.settimeout(PATIENCE_S)
    peer.connect((host, int(port)))
    return peer


def watching(server: ServerProcess, topic: str, **options: Any) -> socket.socket:
    session = post(server, "/v0/watch", {"topics": {topic: {}}})
    return streaming(server, session["stream_url"], **options)


def streaming(server: ServerProcess, url: str, **options: Any) -> socket.socket:
    peer = connect(server, **options)
    peer.sendall(f"GET {url} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    return peer


def read_until(peer: socket.socket, wanted: bytes) -> bytes:
    data = b""
    while wanted not in data:
        more = peer.recv(1 << 16)
        assert more, f"the end, before {wanted!r}: {data[-300:]!r}"
        data += more
    return data


def streams(server: ServerProcess) -> int:
    connection = HTTPConnection(server.address, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/v0/metrics", headers={"accept": "application/json"})
        return int(json.decode(connection.getresponse().read())["sse_connections"])
    finally:
        connection.close()


def vanish(peer: socket.socket) -> None:
    """Go without a word: the other side gets a reset."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


@pytest.mark.parametrize("go", [socket.socket.close, vanish])
def test_a_client_that_goes_frees_its_stream_and_its_session_goes_on(
    server: ServerProcess, go: Callable[[socket.socket], None]
) -> None:
    write(server, "t", "first")
    session = post(server, "/v0/watch", {"topics": {"t": {}}})
    peer = streaming(server, session["stream_url"])
    read_until(peer, b"event: caught-up")
    assert streams(server) == 1
    go(peer)
    until(lambda: streams(server), lambda open_: open_ == 0)
    write(server, "t", "second")
    again = streaming(server, session["stream_url"])
    data = read_until(again, b"event: caught-up")
    assert b'"second"' in data
    assert b'"first"' not in data
    again.close()


@pytest.mark.parametrize("go", [socket.socket.close, vanish])
def test_a_socket_that_goes_frees_its_slot(server: ServerProcess, go: Callable[[socket.socket], None]) -> None:
    write(server, "t", "v")
    peer = connect(server)
    peer.sendall(HANDSHAKE)
    assert read_until(peer, b"\r\n\r\n").startswith(b"HTTP/1.1 101")
    command = b'{"op":"subscribe","topic":"t"}'
    peer.sendall(bytes([0x81, 0x80 | len(command)]) + bytes(4) + command)
    read_until(peer, b'"caught_up"')
    assert streams(server) == 1
    go(peer)
    until(lambda: streams(server), lambda open_: open_ == 0)


def test_clients_that_do_not_read_delay_nobody_and_vanish_without_a_trace(server: ServerProcess) -> None:
    write(server, "t", "first")
    stuck = [watching(server, "t", receive_buffer=4096) for _ in range(5)]
    brisk = watching(server, "t")
    read_until(brisk, b"event: caught-up")
    for _ in range(4):
        write(server, "t", *["x" * 1_000_000] * 5)
        read_until(brisk, b"event: caught-up")
    began = time.monotonic()
    for number in range(10):
        write(server, "t", f"brisk {number}")
        read_until(brisk, b"event: caught-up")
    assert time.monotonic() - began < PATIENCE_S / 2
    for peer in stuck:
        vanish(peer)
    until(lambda: streams(server), lambda open_: open_ == 1)
    brisk.close()


def test_a_stop_ends_every_stream_with_a_word_and_in_time(server: ServerProcess) -> None:
    """inv: 84"""
    write(server, "t", "v")
    peers = [watching(server, "t") for _ in range(3)]
    for peer in peers:
        read_until(peer, b"event: caught-up")
    unread = watching(server, "t", receive_buffer=4096)
    write(server, "t", *["x" * 1_000_000] * 8)
    for peer in peers:
        read_until(peer, b"event: caught-up")
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 10
    for peer in peers:
        assert b'"code":"server_shutting_down"' in read_until(peer, b"server_shutting_down")
        peer.close()
    unread.close()
    assert len(list((server.data_dir / "meta").iterdir())) == 1
