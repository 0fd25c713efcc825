"""POSTs: kept connections, chunked and endless replies, and what is not understood."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from driftq.system.http_client.json_post import Poster, PostError, PostReply

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def _answering(*replies: bytes) -> tuple[Peer, list[bytes]]:
    """A peer that gives these replies, one per request, then closes; and the requests it got."""
    requests: list[bytes] = []
    left = list(replies)

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while left:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            requests.append(head + await reader.readexactly(length))
            writer.write(left.pop(0))
            await writer.drain()
        writer.close()

    return peer, requests


def _post(peer: Peer, *bodies: bytes) -> list[PostReply]:
    async def talk() -> list[PostReply]:
        server = await asyncio.start_server(peer, "127.0.0.1", 0)
        async with server:
            poster = Poster(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/a?b=c")
            try:
                return [await poster.post(body) for body in bodies]
            finally:
                poster.close()

    return asyncio.run(talk())


def test_a_kept_connection_takes_the_next_question() -> None:
    connections = 0
    inner, requests = _answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"HTTP/1.1 204 No\r\n\r\n")

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await inner(reader, writer)

    assert _post(peer, b"one", b"two") == [(200, b"ok"), (204, b"")]
    assert connections == 1
    assert requests[0].startswith(b"POST /a?b=c HTTP/1.1\r\nhost: 127.0.0.1:")
    assert [request[-3:] for request in requests] == [b"one", b"two"]


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabcde",
        b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nabcde",
    ],
)
def test_a_reply_is_read_to_its_end(reply: bytes) -> None:
    peer, _ = _answering(reply)
    assert _post(peer, b"q") == [(200, b"abcde")]


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n",
    ],
)
def test_what_is_no_reply_is_an_error(reply: bytes) -> None:
    peer, _ = _answering(reply)
    with pytest.raises(PostError):
        _post(peer, b"q")


def test_an_answer_that_is_too_long_is_named_with_its_limit() -> None:
    size = (1 << 20) + 1
    peer, _ = _answering(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
    with pytest.raises(PostError, match="is incomplete: its body is longer than 1048576 bytes"):
        _post(peer, b"q")


@pytest.mark.parametrize("url", ["ftp://host/", "host:80", "http://", "http:///path"])
def test_what_is_no_address_is_told_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="not an http"):
        Poster(url)
