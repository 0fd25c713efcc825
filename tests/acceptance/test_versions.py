"""HTTP/1.1 and HTTP/2 on the port of a real server."""

import re
import socket
from http.client import HTTPConnection
from pathlib import Path

import pytest
from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection

from tests.support.process import PATIENCE_S, ServerProcess, serving

pytestmark = pytest.mark.slow

Answer = tuple[int, str, bytes]
"""Status, content type and body, in which times are blanked out."""


def blanked(body: bytes) -> bytes:
    return re.sub(rb'("(?:server_total|wal_append|fsync)_ms":)[0-9.e-]+', rb"\1?", body)


def over_http_1(server: ServerProcess, method: str, path: str, body: bytes) -> Answer:
    connection = HTTPConnection(server.address, timeout=PATIENCE_S)
    try:
        connection.request(method, path, body or None, {"content-type": "application/json"})
        reply = connection.getresponse()
        return reply.status, reply.headers["content-type"], blanked(reply.read())
    finally:
        connection.close()


def over_http_2(server: ServerProcess, method: str, path: str, body: bytes) -> Answer:
    """With prior knowledge: the first bytes are those of HTTP/2."""
    host, _, port = server.address.rpartition(":")
    client = H2Connection(H2Configuration(client_side=True, header_encoding="ascii"))
    client.initiate_connection()
    head = [(":method", method), (":scheme", "http"), (":path", path), (":authority", server.address)]
    client.send_headers(1, [*head, ("content-type", "application/json")], end_stream=not body)
    if body:
        client.send_data(1, body, end_stream=True)
    headers: dict[str, str] = {}
    received = b""
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as wire:
        while True:
            wire.sendall(client.data_to_send())
            for event in client.receive_data(wire.recv(1 << 16)):
                if isinstance(event, events.ResponseReceived):
                    headers = {str(name): str(value) for name, value in event.headers}
                elif isinstance(event, events.DataReceived):
                    received += event.data
                    client.acknowledge_received_data(event.flow_controlled_length, 1)
                elif isinstance(event, events.StreamEnded):
                    return int(headers[":status"]), headers["content-type"], blanked(received)


def test_both_versions_get_the_same_bodies_from_one_port(tmp_path: Path) -> None:
    """inv: 76"""
    large = b'{"records":[{"data":"%b"}]}' % (b"x" * 15_000)
    with serving(tmp_path) as server:
        server.wait_ready()
        asked = [
            ("PUT", "/v0/topics/{}", b'{"cap_records":5,"durability":"fsync"}'),
            ("POST", "/v0/topics/{}", b'{"records":[{"data":1,"tag":"a"},{"data":[2]}],"idempotency_key":"k"}'),
            ("POST", "/v0/topics/{}", large),
            ("POST", "/v0/topics/{}", large),
            ("POST", "/v0/topics/{}", b'{"records":[{"data":0}],"idempotency_key":"k"}'),
            ("POST", "/v0/topics/{}/delete", b'{"match":"a"}'),
            ("GET", "/v0/topics?prefix={}", b""),
            ("POST", "/v0/topics/{}", b'{"records":[{}]}'),
            ("POST", "/v0/topics/{}/claim", b'{"node":"w"}'),
            ("GET", "/v0/topics/{}/diff", b""),
            ("GET", "/v0/nowhere", b""),
            ("GET", "/v0/ready", b""),
        ]
        for method, path, body in asked:
            # Topics of one length, so that nothing but the name differs.
            one = over_http_1(server, method, path.format("one"), body)
            two = over_http_2(server, method, path.format("two"), body)
            assert (two[0], two[1], two[2].replace(b"two", b"one")) == one, path
        page = b'{"from_seq":0,"include_tags":true}'
        one = over_http_1(server, "POST", "/v0/topics/one/diff", page)
        assert over_http_2(server, "POST", "/v0/topics/one/diff", page) == one
        assert one[0] == 200
        assert one[2].count(b"x" * 15_000) == 2, "a body of more than one frame"
