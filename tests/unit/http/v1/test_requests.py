"""Requests and replies of the broker API, through a connection to a whole server."""

from typing import Any

import pytest

from tests.unit.http.v1.client import Client, message
from tests.unit.http.wire import Peer


class _Caller(Peer):
    """A connection to a whole server."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.app.handle, body_bytes_max=1 << 20)
        self._client = client

    def call(self, data: bytes) -> list[bytes]:
        """What was written for this request, write by write."""
        del self.transport.writes[:]
        self.send(data)
        self._client.run()
        self.turn()
        return list(self.transport.writes)


@pytest.fixture
def client() -> Client:
    client = Client()
    client.create()
    return client


def test_outside_the_api_there_are_metrics_and_a_word_where_to_go(client: Client) -> None:
    """inv1: 4"""
    assert client.ask("GET", "/produce") == (404, {"error": "NOT_FOUND", "message": "use /v1/* endpoints"})
    assert client.reply("GET", "/metrics").status == 200


def test_a_reply_leaves_in_one_write(client: Client) -> None:
    """inv1: 6"""
    caller = _Caller(client)
    produce = b'{"topic":"t","value":"v"}'
    for request, status, end in [
        (b"GET /v1/topics HTTP/1.1\r\nhost: a\r\n\r\n", b"200", b'{"topics":["t"]}\n'),
        (
            b"POST /v1/produce HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%b" % (len(produce), produce),
            b"200",
            b'{"status":"produced","topic":"t"}\n',
        ),
        (b"GET /v1/ack HTTP/1.1\r\nhost: a\r\n\r\n", b"405", b'"message":"method not allowed"}\n'),
    ]:
        (written,) = caller.call(request)
        assert written.startswith(b"HTTP/1.1 " + status)
        assert written.endswith(end)


def test_without_a_body_the_query_counts_however_its_absence_is_told(client: Client) -> None:
    """inv1: 10"""
    caller = _Caller(client)
    for name, length in (("a", b"content-length: 0\r\n"), ("b", b"")):
        target = b"/v1/topics?name=%b&partitions=2" % name.encode()
        (written,) = caller.call(b"POST %b HTTP/1.1\r\nhost: a\r\n%b\r\n" % (target, length))
        assert written.endswith(b'{"status":"created","name":"%b","partitions":2}\n' % name.encode())


def test_a_large_value_fits_into_a_query(client: Client) -> None:
    """inv1: 12"""
    value = "x" * (30 << 10)
    target = f"/v1/produce?topic=t&value={value}".encode()
    (written,) = _Caller(client).call(b"POST %b HTTP/1.1\r\nhost: a\r\n\r\n" % target)
    assert written.startswith(b"HTTP/1.1 200")
    assert [item["value"] for item in client.all()] == [value]


def test_unknown_parameters_of_a_query_are_ignored(client: Client) -> None:
    """inv1: 8"""
    assert client.ask("POST", "/v1/topics?name=a&whatever=1").status == 201
    assert client.ask("POST", "/v1/produce?topic=t&value=v&retry_jitter_ms=5&retry_max_attempts=2").status == 200
    _, sink = client.stream("/v1/consume?topic=t&group=g&owner=o&whatever=1")
    assert sink.taken() != b""
    assert client.ask("POST", "/v1/ack?topic=t&group=g&owner=o&partition=0&offset=0&whatever=1").status == 204


PRODUCE: dict[str, Any] = {"topic": "t", "value": "v"}
ACK: dict[str, Any] = {"topic": "t", "group": "g", "owner": "a", "partition": 0, "offset": 0}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/topics", {"name": "new", "extra": 1}),
        ("/v1/produce", PRODUCE | {"extra": 1}),
        ("/v1/produce", PRODUCE | {"envelope": {"extra": 1}}),
        ("/v1/produce", PRODUCE | {"envelope": {"retry_policy": {"max_attempts": 1, "extra": 1}}}),
        ("/v1/ack", ACK | {"extra": 1}),
        ("/v1/nack", ACK | {"extra": 1}),
    ],
)
def test_an_unknown_field_is_refused_and_nothing_comes_of_it(client: Client, path: str, body: Any) -> None:
    """inv1: 7"""
    client.produce("first")
    reader = client.consume()
    assert reader.offsets() == [0]
    status, found = client.ask("POST", path, body)
    assert (status, found["error"]) == (400, "INVALID_ARGUMENT")
    assert client.topics() == ["t"]
    assert [item["value"] for item in client.all()] == ["first"]
    assert client.figure("inflight_messages", topic="t", group="g", partition="0") == 1
    assert reader.offsets() == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/topics", b'{"name":"new","partitions":1.0}'),
        ("/v1/topics", b'{"name":"new","partitions":true}'),
        ("/v1/produce", b'{"topic":"t","value":5}'),
    ],
)
def test_each_field_takes_its_type_and_no_other(client: Client, path: str, body: bytes) -> None:
    """inv1: 11"""
    assert message(client.ask("POST", path, raw=body))[0] == 400
    assert (client.topics(), client.all()) == (["t"], [])
