"""HTTP/1.1 exchanges on blocking sockets, for any number of threads.

A pool keeps idle connections, the last used one on top, and returns one in constant time. A connection that was idle
for 30 s, or that the server has closed, is not used again. Every wait has a deadline, so that a call takes no longer
than its caller allows, however slowly bytes come. `BlockingPool.close` ends exchanges that other threads wait for.

After a fork, the child has copies of the parent's connections, on which both would send. So the child forgets them.
"""

import os
import select
import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, cast
from weakref import WeakSet

from driftq.system.http_client.dialing import ClientSocket, reason_of
from driftq.system.http_client.http1 import Endpoint, HttpError, ResponseReader
from driftq.system.http_client.request_body import Body

if TYPE_CHECKING:
    import ssl

IDLE_S = 30.0
CONTINUE_S_MAX = 1.0
"""How long a request that expects `100 Continue` waits for it before it sends its body, in seconds."""

now = time.monotonic
"""The clock of deadlines, in seconds."""

_READ_BYTES = 64 << 10
"""Bytes per read. A larger buffer is new memory for each read, whose pages cost more than the read."""
_LONG_READ_BYTES = 1 << 20
"""Bytes per read after an answer has filled the smaller buffer."""
_SHORT_BYTES_MAX = 64 << 10
"""A body up to this size is sent together with its head."""
_BLOCK_BYTES = 256 << 10
"""A longer body is sent in blocks of this size, and stops if the server answers meanwhile."""
_SLACK_S = 0.05
"""The timeout of a socket is set again only if it is wrong by more than this many seconds: that costs a system call."""

Reply = tuple[int, dict[str, str], bytes | memoryview]
"""A complete response: its status, its headers with names in lower case, and its body, a view if that is large."""


class BlockingConnection:
    """One connection, used by one thread at a time. Its first exchange makes it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._own = ClientSocket()
        self._is_made = False
        self._socket: socket.socket  # once it is made
        self._reader = ResponseReader()
        self._timeout = -1.0
        self._read_bytes = _READ_BYTES
        self._is_cut = False
        """Whether the last request was not sent completely."""
        self.idle_since = 0.0
        self._tls: ssl.SSLSocket | None = None
        self._poll = select.poll()

    def is_alive(self, moment: float) -> bool:
        """Whether another request may be sent. If something arrives on an idle connection, the connection is ending."""
        if moment - self.idle_since >= IDLE_S or self._poll.poll(0):
            return False
        return self._tls is None or not self._tls.pending()

    def exchange(self, method: str, head: bytes, body: bytes | Body | None, deadline: float) -> Reply:
        """Send a request and return the complete response. Raises HttpError, and what the pieces of a body raise."""
        status, headers = self.begin(method, head, body, deadline)
        return status, headers, self.remainder(deadline)

    def remainder(self, deadline: float) -> bytes | memoryview:
        """Return the rest of the body. Raises HttpError."""
        reader = self._reader
        while not reader.complete:
            room = reader.room()
            if room is None:
                self._receive(deadline)
            else:
                self._receive_large(room, deadline)
        return reader.take()

    def begin(self, method: str, head: bytes, body: bytes | Body | None, deadline: float) -> tuple[int, dict[str, str]]:
        """Send a request, wait for the head of the response. Raises HttpError, and what the pieces of a body raise."""
        if not self._is_made:
            self._connect(deadline)
        reader = self._reader
        reader.expect(method)
        unsent: HttpError | None = None
        self._is_cut = False
        self._read_bytes = _READ_BYTES
        try:
            if body is None:
                self._send(head, deadline, sent=False)
            elif not isinstance(body, Body) and len(body) <= _SHORT_BYTES_MAX:
                self._send(head + body, deadline, sent=False)
            else:
                self._send_pieces(head, body, deadline)
        except _UnsentError as error:
            # A server may answer and close the connection before it has read the whole request: its answer counts.
            unsent = error
        while not reader.head_complete:
            try:
                self._receive(deadline)
            except HttpError as error:
                raise unsent or error from (unsent or error).__cause__
        return reader.status, reader.headers

    def pull(self, deadline: float) -> bytes:
        """Return the next bytes of the body, b"" at its end. Raises HttpError."""
        reader = self._reader
        while not (chunk := bytes(reader.take())) and not reader.complete:
            self._receive(deadline)
        return chunk

    @property
    def reusable(self) -> bool:
        """Whether the response was read to its end, and the connection may carry another request."""
        return self._reader.reusable and not self._is_cut

    def interrupt(self) -> None:
        """Fail what another thread waits for on this connection, also while it is made."""
        self._own.end()

    def close(self) -> None:
        """Close the socket of the connection."""
        self._own.close()

    def __del__(self) -> None:
        # A client that is dropped without `close` closes its connections too.
        self._own.close()

    def _connect(self, deadline: float) -> None:
        self._socket = self._own.connect(self._endpoint, deadline)
        self._tls = cast("ssl.SSLSocket", self._socket) if self._endpoint.tls is not None else None
        self._poll.register(self._socket, select.POLLIN)
        self._is_made = True

    def _send(self, data: bytes | memoryview, deadline: float, *, sent: bool) -> None:
        """Send bytes. Raises HttpError at the deadline, and _UnsentError if the connection does not take them."""
        self._wait_until(deadline, sent=sent)
        try:
            self._socket.sendall(data)
        except TimeoutError as error:
            raise HttpError("the request could not be sent in time", sent=True) from error
        except OSError as error:
            raise _UnsentError(f"the request could not be sent: {reason_of(error)}", sent=True) from error

    def _send_pieces(self, head: bytes, body: bytes | Body, deadline: float) -> None:
        """Send a request with a long body, to its end or until the server has answered.

        Raises HttpError, and what the pieces raise.
        """
        self._is_cut = True
        begun = False
        if expects_continue(head):
            self._send(head, deadline, sent=False)
            if not self._is_continued(deadline):
                return
            begun, head = True, b""
        for block in _blocks(head, body.sent() if isinstance(body, Body) else (body,)):
            self._wait_until(deadline, sent=begun)
            if not self._send_unless_answered(block, deadline):
                return
            begun = True
        self._is_cut = False

    def _send_unless_answered(self, block: bytes | memoryview, deadline: float) -> bool:
        """Send bytes. Returns False if the server has answered before all of them were taken. Raises HttpError."""
        rest = memoryview(block)
        while rest:
            if self._is_answered(deadline):
                return False
            try:
                sent = self._socket.send(rest) if self._tls is None else self._send_tls(self._tls, rest, deadline)
            except OSError as error:
                raise _UnsentError(f"the request could not be sent: {reason_of(error)}", sent=True) from error
            rest = rest[sent:]
        return True

    def _send_tls(self, tls: "ssl.SSLSocket", rest: memoryview, deadline: float) -> int:
        """Send some bytes, or wait until that may work. Returns how many were taken."""
        import ssl  # imported only if TLS is used

        tls.settimeout(0)
        self._timeout = 0.0
        try:
            return tls.send(rest)
        except ssl.SSLWantWriteError:
            self._ready(select.POLLIN | select.POLLOUT, deadline)
        except ssl.SSLWantReadError:
            self._ready(select.POLLIN, deadline)
        return 0

    def _is_continued(self, deadline: float) -> bool:
        """Wait until the server asks for the body, at most 1 s. Returns False if it has answered instead."""
        reader, until = self._reader, min(deadline, now() + CONTINUE_S_MAX)
        while not reader.continued and not reader.head_complete and now() < until:
            if self._poll.poll(max(0.0, until - now()) * 1000):
                self._receive(deadline)
        return not reader.head_complete

    def _is_answered(self, deadline: float) -> bool:
        """Wait until more can be sent. Returns True if the server has answered before that."""
        if self._tls is not None:
            return self._is_answered_tls(self._tls)
        while self._ready(select.POLLIN | select.POLLOUT, deadline) & ~select.POLLOUT:
            self._receive(deadline)
            if self._reader.head_complete:
                return True
        return False

    def _ready(self, events: int, deadline: float) -> int:
        """Wait for one of these events and return those that occurred. Raises HttpError."""
        both = select.poll()
        both.register(self._socket, events)
        found = both.poll(max(0.0, deadline - now()) * 1000)
        if not found:
            raise HttpError("the request could not be sent in time", sent=True)
        return found[0][1]

    def _is_answered_tls(self, tls: "ssl.SSLSocket") -> bool:
        """Whether an answer has arrived. Does not wait, because TLS may have to read before it can write."""
        import ssl  # imported only if TLS is used

        reader = self._reader
        while not reader.head_complete and (tls.pending() or self._poll.poll(0)):
            tls.settimeout(0)
            self._timeout = 0.0
            try:
                data = tls.recv(_READ_BYTES)
            except ssl.SSLWantReadError:
                return False  # it was not a part of an answer
            except OSError as error:
                raise HttpError(f"the connection broke: {reason_of(error)}", sent=True) from error
            self._take(data)
        return reader.head_complete

    def _receive_large(self, room: memoryview, deadline: float) -> None:
        """Receive some bytes of a large body. Raises HttpError."""
        self._wait_until(deadline, sent=True)
        try:
            got = self._socket.recv_into(room)
        except TimeoutError as error:
            raise HttpError("the server did not answer in time", sent=True) from error
        except OSError as error:
            raise HttpError(f"the connection broke: {reason_of(error)}", sent=True) from error
        if got:
            self._reader.received(got)
        else:
            self._reader.end()

    def _receive(self, deadline: float) -> None:
        self._wait_until(deadline, sent=True)
        size = self._read_bytes
        try:
            data = self._socket.recv(size)
        except TimeoutError as error:
            raise HttpError("the server did not answer in time", sent=True) from error
        except OSError as error:
            raise HttpError(f"the connection broke: {reason_of(error)}", sent=True) from error
        if len(data) == size:
            self._read_bytes = _LONG_READ_BYTES
        self._take(data)

    def _take(self, data: bytes) -> None:
        if data:
            self._reader.feed(data)
        else:
            self._reader.end()

    def _wait_until(self, deadline: float, *, sent: bool) -> None:
        """Let the next socket operation wait until the deadline. Raises HttpError if that has passed."""
        left = deadline - now()
        if left <= 0:
            raise HttpError("the server did not answer in time", sent=sent)
        if not -_SLACK_S < left - self._timeout < _SLACK_S:
            self._socket.settimeout(left)
            self._timeout = left


class _UnsentError(HttpError):
    """The connection has not taken the whole request; an answer may have arrived."""


def _blocks(head: bytes, pieces: Iterable[bytes]) -> Iterator[bytes | memoryview]:
    """Yield the blocks to send, one send each; the first block includes the head."""
    for piece in pieces:
        view = memoryview(piece)
        for at in range(0, len(view), _BLOCK_BYTES):
            block = view[at : at + _BLOCK_BYTES]
            yield b"".join((head, block)) if head else block
            head = b""
    if head:
        yield head


def expects_continue(head: bytes) -> bool:
    """Whether the head of a request asks the server to confirm that it wants the body."""
    return b"\r\nexpect: 100-continue\r\n" in head.lower()


class BlockingPool:
    """Connections to one server. Any number of threads may use it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._idle: deque[BlockingConnection] = deque()
        self._busy: set[BlockingConnection] = set()
        self.closed = False
        self._expiry_at = now() + IDLE_S
        """When to look for connections that were idle for too long."""
        _pools.add(self)

    def take(self) -> BlockingConnection:
        """Return a connection for one exchange; it must be given back. Raises HttpError."""
        moment = now()
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = BlockingConnection(self._endpoint)
                break
            if connection.is_alive(moment):
                break
            connection.close()
        self._busy.add(connection)
        if self.closed:  # checked after the connection is known to `close`
            self.give_back(connection)
            raise HttpError("the client is closed", sent=False)
        return connection

    def give_back(self, connection: BlockingConnection) -> None:
        """Keep a connection for the next exchange if its response was read to the end; close it otherwise."""
        self._busy.discard(connection)
        if not connection.reusable:
            connection.close()
            return
        connection.idle_since = moment = now()
        self._idle.append(connection)
        if moment >= self._expiry_at:
            self._expire(moment)
        if self.closed:  # checked after the connection is known to `close`
            self._close_idle()

    def _expire(self, moment: float) -> None:
        """Close connections that were idle for too long, from the bottom, where the least recently used are."""
        self._expiry_at = moment + IDLE_S
        while self._idle:
            try:
                oldest = self._idle.popleft()
            except IndexError:  # another thread took it
                return
            if moment - oldest.idle_since < IDLE_S:
                self._idle.appendleft(oldest)
                self._expiry_at = oldest.idle_since + IDLE_S
                return
            oldest.close()

    def close(self) -> None:
        """Close all connections. Exchanges that wait on one end with an HttpError."""
        self.closed = True
        for connection in list(self._busy):
            connection.interrupt()
        self._close_idle()

    def forget(self) -> None:
        """Close this process's copies of all connections without shutting them down: they belong to the parent."""
        for connection in self._busy:
            connection.close()
        self._busy = set()
        self._close_idle()

    def _close_idle(self) -> None:
        with suppress(IndexError):  # another thread may close them too
            while self._idle:
                self._idle.pop().close()


_pools: WeakSet[BlockingPool] = WeakSet()


def _forget_all() -> None:
    for pool in list(_pools):
        pool.forget()


os.register_at_fork(after_in_child=_forget_all)
