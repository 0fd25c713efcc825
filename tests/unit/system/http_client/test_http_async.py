"""Exchanges on an asyncio loop, with a transport that the test plays: what happens while a body is being sent."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest

from driftq.system.http_client.http1 import Endpoint
from driftq.system.http_client.http_async import AsyncConnection
from driftq.system.http_client.request_body import Body

HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
WAIT_S = 5.0


class PlayedTransport:
    """A transport whose peer is the test: `arrive` delivers as much as the connection wants to read."""

    def __init__(self, connection: AsyncConnection) -> None:
        self.written = b""
        self._connection = connection
        self._incoming = b""
        self._reading = True
        connection.connection_made(cast("asyncio.Transport", self))

    def arrive(self, data: bytes) -> None:
        self._incoming += data
        while self._incoming and self._reading:
            room = self._connection.get_buffer(-1)
            size = min(len(room), len(self._incoming))
            room[:size] = self._incoming[:size]
            self._incoming = self._incoming[size:]
            self._connection.buffer_updated(size)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        asyncio.get_running_loop().call_soon(self.arrive, b"")

    def write(self, data: bytes) -> None:
        self.written += data

    def get_extra_info(self, name: str) -> None:
        assert name == "socket"

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        self._reading = False


def answer(content: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(content), content)


async def pieces_around(early: Callable[[], None]) -> AsyncIterator[bytes]:
    """Yield a body in the middle of which `early` is called, as when a server answers before it has read all of it."""
    yield b"first"
    early()
    yield b"last"


@pytest.mark.parametrize("size", [300 << 10, 1 << 20, 6 << 20], ids=["300 KiB", "1 MiB", "6 MiB"])
def test_an_answer_that_comes_while_the_body_is_sent_is_read_to_its_end(size: int) -> None:
    content = b"0123456789abcdef" * (size // 16)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        connection = AsyncConnection(loop, Endpoint("127.0.0.1", 1))
        transport = PlayedTransport(connection)
        body = Body(pieces_around(lambda: transport.arrive(answer(content))))
        status, _, received = await connection.exchange("POST", HEAD, body, loop.time() + WAIT_S)
        assert (status, bytes(received)) == (200, content)

    asyncio.run(run())


def test_a_connection_reads_the_next_answer_after_a_long_one_came_early() -> None:
    content = bytes(300 << 10)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        connection = AsyncConnection(loop, Endpoint("127.0.0.1", 1))
        transport = PlayedTransport(connection)

        async def pieces() -> AsyncIterator[bytes]:
            yield b"all"
            transport.arrive(answer(content))

        reply = await connection.exchange("POST", HEAD, Body(pieces(), len(b"all")), loop.time() + WAIT_S)
        assert bytes(reply[2]) == content
        assert connection.reusable
        connection.rest()
        loop.call_soon(transport.arrive, answer(b"next"))
        reply = await connection.exchange("GET", HEAD, None, loop.time() + WAIT_S)
        assert bytes(reply[2]) == b"next"

    asyncio.run(run())
