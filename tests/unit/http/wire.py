"""A peer without a socket: what it sends goes straight to a connection, what it is sent is kept."""

import asyncio
from collections.abc import Callable

from driftq.http.answer import Answer
from driftq.http.connection import Connection, Peers
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.testing import ManualClock, ManualRuntime

BODY_BYTES_MAX = 1000


class Transport(asyncio.Transport):
    """Keeps every write apart, and what else was asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = self.ended = self.aborted = False
        self._reading = True

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

    def __init__(self, handle: Callable[[Request], Answer] = echo) -> None:
        self.runtime = ManualRuntime(ManualClock())
        self.transport = Transport()
        self.peers = Peers()
        self.connection = Connection(handle, self.runtime, self.peers, body_bytes_max=BODY_BYTES_MAX)
        self.connection.connection_made(self.transport)

    def send(self, data: bytes) -> None:
        """Bytes on the wire."""
        self.connection.data_received(data)

    @property
    def received(self) -> bytes:
        """All that was sent to the peer."""
        return b"".join(self.transport.writes)

    def replies(self) -> list[tuple[int, dict[bytes, bytes], bytes]]:
        """Status, headers and body of every reply; a reply to HEAD must be the last one."""
        found = []
        rest = self.received
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
