"""Bodies that both clients send piece by piece: what a server gets, when it is sent again, and what ends it early."""

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator
from queue import Queue
from typing import Any

import pytest

from driftq.client import AsyncClient, Client, ClientError, Retries, TransportError
from tests.support.hostile_server import CERTIFICATE, heard, hostile, reply
from tests.support.process import ServerProcess

TIMEOUT_S = 3.0
KINDS = pytest.mark.parametrize("kind", ["blocking", "asynchronous", "asynchronous pieces"])
REFUSED = b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\n{}"


def post(
    kind: str,
    url: str,
    pieces: Any,
    *,
    retries: int = 0,
    method: str = "PUT",
    ca_file: str | None = None,
    **given: Any,
) -> bytes:
    """Send pieces by one of the clients; return the body of the answer."""
    often = Retries(count=retries, backoff_s=0.0)
    if kind == "blocking":
        with Client(url, timeout=TIMEOUT_S, retries=often, ca_file=ca_file) as client:
            return client.request(method, "/x", content=pieces, **given).content

    async def use() -> bytes:
        content = _asynchronous(pieces) if kind == "asynchronous pieces" else pieces
        async with AsyncClient(url, timeout=TIMEOUT_S, retries=often, ca_file=ca_file) as client:
            return (await client.request(method, "/x", content=content, **given)).content

    return asyncio.run(use())


class _Again:
    """Asynchronous pieces that can be had again."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


def _asynchronous(pieces: Any) -> Any:
    async def once() -> AsyncIterator[bytes]:
        for piece in pieces:
            await asyncio.sleep(0)
            yield piece

    return _Again(pieces) if isinstance(pieces, list) else once()


def whole(connection: socket.socket, text: bytes = b"") -> bytes:
    """Return the body of a request in chunks, still in chunks."""
    text = text or heard(connection)
    while not text.endswith(b"0\r\n\r\n"):
        chunk = connection.recv(1 << 20)
        if not chunk:
            raise OSError("gone")
        text += chunk
    return text.partition(b"\r\n\r\n")[2]


def once(*pieces: bytes) -> Iterator[bytes]:
    yield from pieces


@KINDS
def test_a_server_gets_the_pieces_as_chunks_or_as_its_length(kind: str, cli_server: ServerProcess) -> None:
    url = f"http://{cli_server.address}"
    name = f"streamed-{kind.replace(' ', '-')}"
    records = b'{"records":[' + b",".join(b'{"data":%d}' % number for number in range(5000)) + b"]}"
    pieces = [records[at : at + 1000] for at in range(0, len(records), 1000)]
    json = {"content-type": "application/json"}
    with Client(url) as client:
        for number, length in enumerate((None, len(records))):
            topic = client.topic(f"{name}-{number}")
            content = _asynchronous(iter(pieces)) if kind == "asynchronous pieces" else iter(pieces)
            request: dict[str, Any] = {"content": content, "content_length": length, "headers": json}
            if kind == "blocking":
                client.request("POST", f"/v0/topics/{topic.name}", **request)
            else:

                async def send(given: Any = request, path: str = f"/v0/topics/{topic.name}") -> None:
                    async with AsyncClient(url) as other:
                        await other.request("POST", path, **given)

                asyncio.run(send())
            assert [item.data for item in topic.read()] == list(range(5000))  # type: ignore[union-attr]


@KINDS
def test_a_body_that_cannot_begin_again_is_sent_once(kind: str) -> None:
    asked: list[bytes] = []

    def play(connection: socket.socket, _: int) -> None:
        asked.append(whole(connection))

    with hostile(play) as url, pytest.raises(TransportError) as failed:
        post(kind, url, once(b"ab", b"c"), retries=3)
    assert failed.value.sent
    assert asked == [b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"]


@KINDS
def test_a_body_that_can_begin_again_is_sent_again_from_its_beginning(kind: str) -> None:
    asked: list[bytes] = []

    def play(connection: socket.socket, number: int) -> None:
        asked.append(whole(connection))
        if number:
            connection.sendall(reply(b"taken"))

    with hostile(play) as url:
        assert post(kind, url, [b"ab", b"c"], retries=3) == b"taken"
    assert asked == [b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"] * 2


@KINDS
def test_a_call_that_never_reached_a_server_keeps_its_pieces(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    pieces = once(b"ab", b"c")
    with pytest.raises(TransportError) as failed:
        post(kind, url, pieces, retries=2)
    assert not failed.value.sent
    assert list(pieces) == [b"ab", b"c"]


@KINDS
def test_an_answer_ends_the_sending(kind: str) -> None:
    """A server that refuses, and reads no more, is heard before the time is over; its connection is not used again."""
    given = 0

    def endless() -> Iterator[bytes]:
        nonlocal given
        while True:
            given += 1
            yield b"x" * 65536

    ended = threading.Event()

    def play(connection: socket.socket, _: int) -> None:
        heard(connection)
        connection.sendall(REFUSED)
        ended.wait(TIMEOUT_S * 2)

    began = time.monotonic()
    with hostile(play) as url, pytest.raises(ClientError, match="413"):
        post(kind, url, endless())
    ended.set()
    assert time.monotonic() - began < TIMEOUT_S
    assert given < 1000


@KINDS
def test_pieces_go_through_tls_and_an_answer_ends_them_there_too(kind: str) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)
    size = 3 << 20
    ended = threading.Event()

    def play(connection: socket.socket, number: int) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            if number == 0:
                secured.sendall(reply(b"%d" % len(whole(secured))))
                return
            heard(secured)
            secured.sendall(REFUSED)
            ended.wait(TIMEOUT_S * 2)

    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 65536

    with hostile(play) as url:
        secure = url.replace("http:", "https:")
        framing = 3 * len(b"100000\r\n\r\n") + len(b"0\r\n\r\n")
        sent = post(kind, secure, [b"x" * (1 << 20)] * 3, ca_file=CERTIFICATE)
        assert sent == b"%d" % (size + framing)
        began = time.monotonic()
        with pytest.raises(ClientError, match="413"):
            post(kind, secure, endless(), ca_file=CERTIFICATE)
        ended.set()
        assert time.monotonic() - began < TIMEOUT_S


def test_an_answer_ends_the_sending_of_a_long_body() -> None:
    ended = threading.Event()

    def play(connection: socket.socket, _: int) -> None:
        heard(connection)
        connection.sendall(REFUSED)
        ended.wait(TIMEOUT_S * 2)

    began = time.monotonic()
    with (
        hostile(play) as url,
        Client(url, timeout=TIMEOUT_S, retries=0) as client,
        pytest.raises(ClientError, match="413"),
    ):
        client.request("PUT", "/x", content=b"x" * (64 << 20))
    ended.set()
    assert time.monotonic() - began < TIMEOUT_S


@KINDS
def test_a_server_that_reads_nothing_is_an_error_in_time(kind: str) -> None:
    ended = threading.Event()

    def play(connection: socket.socket, _: int) -> None:
        ended.wait(TIMEOUT_S * 3)

    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 65536

    began = time.monotonic()
    with hostile(play) as url, pytest.raises(TransportError, match="in time"):
        post(kind, url, endless())
    ended.set()
    assert time.monotonic() - began < TIMEOUT_S + 1.0


@KINDS
def test_an_error_of_the_pieces_is_the_callers_and_the_server_sees_no_whole_request(kind: str) -> None:
    got: Queue[bytes] = Queue()

    def play(connection: socket.socket, _: int) -> None:
        text = heard(connection)
        while chunk := connection.recv(65536):
            text += chunk
        got.put(text.partition(b"\r\n\r\n")[2])

    def failing() -> Iterator[bytes]:
        yield b"ab"
        raise OSError("the file is gone")

    with hostile(play) as url:
        with pytest.raises(OSError, match="the file is gone"):
            post(kind, url, failing(), retries=3)
        assert got.get(timeout=5) == b"2\r\nab\r\n"
        with pytest.raises(ValueError, match="3 bytes, but its length is 4"):
            post(kind, url, [b"ab", b"c"], retries=3, content_length=4)
        assert got.get(timeout=5) == b"abc"
        assert got.empty()


@KINDS
def test_a_body_that_is_expected_waits_until_the_server_asks_for_it(kind: str) -> None:
    before: list[bytes] = []

    def play(connection: socket.socket, number: int) -> None:
        head = heard(connection)
        before.append(head.partition(b"\r\n\r\n")[2])
        if number == 0:
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            connection.sendall(reply(whole(connection, b"\r\n\r\n" + connection.recv(65536))))

    with hostile(play) as url:
        expects = {"Expect": "100-continue"}
        assert post(kind, url, once(b"ab"), headers=expects) == b"2\r\nab\r\n0\r\n\r\n"
    assert before == [b""]


@KINDS
def test_a_body_that_is_refused_before_it_is_sent_stays(kind: str) -> None:
    def play(connection: socket.socket, _: int) -> None:
        heard(connection)
        connection.sendall(b"HTTP/1.1 417 Expectation Failed\r\ncontent-length: 2\r\n\r\n{}")
        assert connection.recv(65536) == b""

    pieces = once(b"ab")
    with hostile(play) as url, pytest.raises(ClientError, match="417"):
        post(kind, url, pieces, headers={"expect": "100-continue"})
    assert list(pieces) == [b"ab"]


def test_a_blocking_client_refuses_asynchronous_pieces() -> None:
    with hostile(lambda connection, _: None) as url, pytest.raises(TypeError, match="only an AsyncClient"):
        post("blocking", url, _Again([b"a"]))
