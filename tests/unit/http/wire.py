"""A peer without a socket: what it sends goes straight to a connection, what it is sent is kept."""

import asyncio
from collections.abc import Callable, Iterable
from typing import cast

from driftq.http.answer import Answer
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.transport.connection import ServerConnection
from driftq.http.transport.connection_context import Serving, Terms
from driftq.testing import ManualClock, ManualRuntime

BODY_BYTES_MAX = 1000


class Transport(asyncio.Transport):
    """Keeps every write apart, and what else was asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = self.ended = self.aborted = False
        self.unsent = 0
        self.limits: tuple[int | None, int | None] | None = None
        self._reading = True
        self._protocol: asyncio.BaseProtocol | None = None

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = (high, low)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        assert not self.ended
        self.writes.append(bytes(data))

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True

    def is_reading(self) -> bool:
        return self._reading


def echo(request: Request) -> Reply:
    """An answer that tells the request."""
    return Reply(
        200, f"{request.method} {request.path} {request.query} {request.body.decode()}".encode(), b"text/plain"
    )


class Peer:
    """One connection, and the other end of it."""

    def __init__(self, handle: Callable[[Request], Answer] = echo, **terms: int) -> None:
        self.runtime = ManualRuntime(ManualClock())
        self.serving = Serving(handle, self.runtime, Terms(**({"body_bytes_max": BODY_BYTES_MAX} | terms)))
        self.peers = self.serving.peers
        self.transport = self.another()

    def another(self) -> Transport:
        """One more connection to the same server."""
        transport = Transport()
        connection = ServerConnection(self.serving)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        return transport

    @property
    def connection(self) -> asyncio.Protocol:
        """Whoever has the connection now."""
        return cast("asyncio.Protocol", self.transport.get_protocol())

    def send(self, data: bytes) -> None:
        """Bytes on the wire, and the turn of the loop they cause."""
        self.connection.data_received(data)
        self.runtime.run_until_idle()

    def turn(self) -> None:
        """What the loop has to do."""
        self.runtime.run_until_idle()

    def lose(self) -> None:
        """The peer is gone."""
        self.connection.connection_lost(None)
        self.runtime.run_until_idle()

    @property
    def received(self) -> bytes:
        """All that was sent to the peer."""
        return b"".join(self.transport.writes)

    def replies(self) -> list[tuple[int, dict[bytes, bytes], bytes]]:
        """Status, headers and body of every reply; a reply to HEAD must be the last one."""
        return replies_in(self.received)


def replies_in(rest: bytes) -> list[tuple[int, dict[bytes, bytes], bytes]]:
    """Status, headers and body of every reply in these bytes."""
    found = []
    while rest:
        head, _, rest = rest.partition(b"\r\n\r\n")
        line, *lines = head.split(b"\r\n")
        headers = dict(one.split(b": ", 1) for one in lines)
        size = int(headers[b"content-length"])
        found.append((int(line.split()[1]), headers, rest[:size]))
        rest = rest[size:]
    return found


def get(path: str = "/a", *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
    """The bytes of a request without a body."""
    lines = [f"{method} {path} HTTP/{version}", "Host: here", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
