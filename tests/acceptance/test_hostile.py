"""Peers that mean no good, against a real process: it goes on answering, and what they cost is bounded."""

import random
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pyarrow as pa
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from msgspec import json

from driftq.http.transport.connection import PREFACE
from tests.support.process import ServerProcess, serving

pytestmark = pytest.mark.slow

PATIENCE_S = 10.0
MIB = 1 << 20
ROUNDS = 150


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    times = {
        "DRIFTQ_HEADER_TIMEOUT_MS": "400",
        "DRIFTQ_BODY_TIMEOUT_MS": "400",
        "DRIFTQ_KEEPALIVE_TIMEOUT_MS": "1500",
        "DRIFTQ_MAX_BODY_BYTES": str(4 * MIB),
    }
    with serving(tmp_path, **times) as server:
        server.wait_ready()
        yield server


def dial(server: ServerProcess, receive_buffer: int | None = None) -> socket.socket:
    host, port = server.address.rsplit(":", 1)
    peer = socket.socket()
    if receive_buffer is not None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    peer.settimeout(PATIENCE_S)
    peer.connect((host, int(port)))
    return peer


def read_all(peer: socket.socket) -> bytes:
    """Until the server closes."""
    found = b""
    with suppress(ConnectionError):
        while data := peer.recv(65536):
            found += data
    return found


def memory_bytes(server: ServerProcess) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def stop_clean(server: ServerProcess) -> None:
    """It ends as it should, and nothing was worth a line in its log."""
    server.process.send_signal(signal.SIGTERM)
    assert server.ended() == (0, "")


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: h", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


# --- garbage ------------------------------------------------------------------------------------------------------


def hostile(dice: random.Random) -> bytes:
    """Something that nobody should send."""
    good = post("/v0/topics/t", b'{"records":[{"data":1}]}')
    frame = struct.pack(">I", dice.randrange(100))[1:] + bytes([dice.randrange(12), dice.randrange(256)])
    choices = [
        dice.randbytes(dice.randrange(1, 5000)),
        b"\r\n" * dice.randrange(1000),
        good[: dice.randrange(len(good))],
        good.replace(b"1.1", b"9.9"),
        _flipped(good, dice),
        post("/v0/topics/t", b"{" * dice.randrange(1, 100_000)),
        post("/v0/topics/t", b'{"records":[{"data":' + dice.randbytes(50) + b"}]}"),
        post("/v0/topics/t/diff", dice.randbytes(100), "Content-Encoding: gzip"),
        b"GET / HTTP/1.1\r\n" + b"".join(b"a%d: b\r\n" % n for n in range(dice.randrange(2000))) + b"\r\n",
        b"GET /" + b"a" * dice.randrange(200_000) + b" HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % dice.randrange(1 << 70),
        b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % dice.randrange(1 << 62),
        good * dice.randrange(300),
        PREFACE + dice.randbytes(dice.randrange(3000)),
        PREFACE + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" + (frame + dice.randbytes(4)) * dice.randrange(500),
        PREFACE + _flipped(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" * 50, dice),
    ]
    return dice.choice(choices)


def _flipped(data: bytes, dice: random.Random) -> bytes:
    spoilt = bytearray(data)
    for _ in range(dice.randrange(1, 5)):
        spoilt[dice.randrange(len(spoilt))] = dice.randrange(256)
    return bytes(spoilt)


def misbehave(server: ServerProcess, dice: random.Random) -> None:
    """One connection, and one of the ways to leave it."""
    with dial(server) as peer, suppress(OSError):
        data = hostile(dice)
        for place in range(0, len(data), size := dice.choice([1000, 100_000, 1 << 20])):
            peer.sendall(data[place : place + size])
        way = dice.randrange(4)
        if way == 0:
            peer.shutdown(socket.SHUT_WR)
            read_all(peer)
        elif way == 1:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif way == 2:
            peer.settimeout(0.01)
            read_all(peer)


@pytest.mark.parametrize("seed", range(2))
def test_garbage_is_survived_and_does_not_add_up(server: ServerProcess, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(ROUNDS // 3):
        misbehave(server, dice)
    before = memory_bytes(server)
    for _ in range(ROUNDS):
        misbehave(server, dice)
        assert server.get("/healthz")[0] == 200
    assert memory_bytes(server) - before < 64 * MIB
    stop_clean(server)


def test_an_arrow_body_without_a_schema_is_refused_and_the_server_lives(server: ServerProcess) -> None:
    """proves: G-IN-1"""
    body = bytearray(pa.record_batch({"data": [1]}).serialize().to_pybytes())
    body[131] = 255
    assert len(body) == 152
    for path in ("/v0/topics/t", "/v0/topics/t/stage?writer=w&batch=1&part=0&attempt=0"):
        for wrong in (bytes(body), pa.record_batch({"data": ["1"]}).serialize().to_pybytes()):
            with dial(server) as peer:
                head = f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Type: application/vnd.apache.arrow.stream\r\n"
                peer.sendall(f"{head}Content-Length: {len(wrong)}\r\nConnection: close\r\n\r\n".encode() + wrong)
                found = read_all(peer)
            assert found.startswith(b"HTTP/1.1 400 "), path
            assert b'"code":"invalid_request"' in found
            assert b"its first message is a record batch; it must be a schema" in found
    assert server.process.poll() is None
    stop_clean(server)


# --- slow peers ---------------------------------------------------------------------------------------------------


def test_slow_heads_and_bodies_are_told_so_and_silence_is_not_waited_for(server: ServerProcess) -> None:
    slow = {"head": b"GET /heal", "body": b"POST /v0/topics/t HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n1"}
    for part, data in slow.items():
        with dial(server) as peer:
            peer.sendall(data)
            found = read_all(peer)
            assert found.startswith(b"HTTP/1.1 408 "), part
            assert b'"code":"invalid_request"' in found
    with dial(server) as silent:
        assert read_all(silent) == b""
    with dial(server) as idle:
        idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
        began = time.monotonic()
        assert read_all(idle).startswith(b"HTTP/1.1 200 ")
        assert 1.0 < time.monotonic() - began < PATIENCE_S


def test_a_half_closed_peer_gets_what_it_asked_for(server: ServerProcess) -> None:
    with dial(server) as peer:
        peer.sendall(post("/v0/topics/t", b'{"records":[{"data":1}]}') * 20)
        peer.shutdown(socket.SHUT_WR)
        assert read_all(peer).count(b"HTTP/1.1 20") == 20


def test_connections_beyond_the_cap_are_refused_and_the_others_are_served(tmp_path: Path) -> None:
    with serving(tmp_path, DRIFTQ_MAX_CONNECTIONS="5") as server, ExitStack() as stack:
        server.wait_ready()
        peers = [stack.enter_context(dial(server)) for _ in range(8)]
        refused = [read_all(peer) for peer in peers[5:]]
        assert all(found.startswith(b"HTTP/1.1 503 ") and b'"max_connections"' in found for found in refused)
        for peer in peers[:5]:
            peer.sendall(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
            assert peer.recv(1000).startswith(b"HTTP/1.1 200 ")


# --- streams that nobody reads ------------------------------------------------------------------------------------

STREAMS = 200


def ask(server: ServerProcess, path: str, value: object) -> dict[str, object]:
    with dial(server) as peer:
        peer.sendall(post(path, json.encode(value), "Connection: close"))
        head, _, body = read_all(peer).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 20"), head
        return json.decode(body, type=dict[str, object])


def test_streams_that_nobody_reads_cost_their_buffers_and_delay_nobody(tmp_path: Path) -> None:
    with serving(tmp_path) as server, ExitStack() as stack:
        server.wait_ready()
        batch = {"records": [{"data": "x" * 10_000} for _ in range(100)]}
        for _ in range(10):
            ask(server, "/v0/topics/t", batch)
        before = memory_bytes(server)
        for _ in range(STREAMS):
            session = ask(server, "/v0/watch", {"topics": {"t": {"from_seq": 0}}})
            peer = stack.enter_context(dial(server, receive_buffer=4096))
            peer.sendall(f"GET {session['stream_url']} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        slowest = 0.0
        for _ in range(20):
            began = time.monotonic()
            ask(server, "/v0/topics/t", {"records": [{"data": "live"}]})
            slowest = max(slowest, time.monotonic() - began)
        # A frame of a watch is 256 KiB, and a peer has room for as long as less than 64 KiB wait for it.
        assert memory_bytes(server) - before < STREAMS * 512 * 1024 + 64 * MIB
        assert slowest < PATIENCE_S / 2
        stop_clean(server)


def test_unread_streams_of_one_http_2_connection_cost_their_buffers_and_delay_nobody(tmp_path: Path) -> None:
    with serving(tmp_path) as server, ExitStack() as stack:
        server.wait_ready()
        for _ in range(10):
            ask(server, "/v0/topics/t", {"records": [{"data": "x" * 10_000} for _ in range(100)]})
        before = memory_bytes(server)
        peer = stack.enter_context(dial(server, receive_buffer=4096))
        client = H2Connection(H2Configuration(client_side=True))
        client.initiate_connection()
        client.increment_flow_control_window(1 << 30)
        for _ in range(STREAMS):
            session = ask(server, "/v0/watch", {"topics": {"t": {"from_seq": 0}}})
            head = {":method": "GET", ":scheme": "http", ":path": str(session["stream_url"]), ":authority": "h"}
            number = client.get_next_available_stream_id()
            client.send_headers(number, list(head.items()), end_stream=True)
            client.increment_flow_control_window(1 << 30, number)
        peer.sendall(client.data_to_send())
        slowest = 0.0
        for _ in range(20):
            began = time.monotonic()
            ask(server, "/v0/topics/t", {"records": [{"data": "live"}]})
            slowest = max(slowest, time.monotonic() - began)
        assert memory_bytes(server) - before < STREAMS * 512 * 1024 + 64 * MIB
        assert slowest < PATIENCE_S / 2
        stop_clean(server)
