"""HTTP/1.1 exchanges on blocking sockets, for any number of threads.

A pool keeps connections that are idle, the one used last on top, and hands one out in constant time. A connection that
was idle for 30 s, or that the server has closed, is not used again. Every wait has a deadline, so that a call takes no
longer than its caller allows, however slowly bytes come. `Pool.close` ends exchanges that other threads wait for.

A fork leaves the child with copies of the parent's connections, on which both would talk at once, so the child forgets
them.
"""

import os
import select
import socket
import time
from collections import deque
from contextlib import suppress
from typing import NamedTuple
from weakref import WeakSet

from driftq.seam.http1 import Endpoint, HttpError, ResponseReader

IDLE_S = 30.0
CONNECT_S_MAX = 10.0

now = time.monotonic
"""The clock of deadlines, in seconds."""

_READ_BYTES = 256 << 10
_JOINED_BYTES_MAX = 64 << 10
"""A body up to this size is copied behind its head; a longer one is sent from where it is."""
_SLACK_S = 0.05
"""The timeout of a socket is set again only if it is wrong by more than this: setting it costs a system call."""


class Reply(NamedTuple):
    """A whole response. The names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Connection:
    """One connection, used by one thread at a time."""

    def __init__(self, endpoint: Endpoint, deadline: float) -> None:
        self._reader = ResponseReader()
        self._timeout = -1.0
        self._is_tls = endpoint.tls is not None
        self.idle_since = 0.0
        self._socket = _connected(endpoint, deadline)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def is_alive(self, now: float) -> bool:
        """Whether another request may be sent: an idle connection on which something arrives is one that ends."""
        return now - self.idle_since < IDLE_S and not self._poll.poll(0)

    def exchange(self, method: str, head: bytes, body: bytes | None, deadline: float) -> Reply:
        """Send a request and return the whole response. Raises HttpError."""
        self.begin(method, head, body, deadline)
        reader = self._reader
        while not reader.complete:
            self._receive(deadline)
        return Reply(reader.status, reader.headers, reader.take())

    def begin(self, method: str, head: bytes, body: bytes | None, deadline: float) -> tuple[int, dict[str, str]]:
        """Send a request and wait for the head of the response. Raises HttpError."""
        reader = self._reader
        reader.expect(method)
        unsent = self._send(head, body, deadline)
        while not reader.head_complete:
            try:
                self._receive(deadline)
            except HttpError as error:
                # A server may answer and hang up before it has read the whole request: its answer counts.
                raise (error if unsent is None else unsent) from error
        return reader.status, reader.headers

    def pull(self, deadline: float) -> bytes:
        """Return the next bytes of the body, none at its end. Raises HttpError."""
        reader = self._reader
        while not (chunk := reader.take()) and not reader.complete:
            self._receive(deadline)
        return chunk

    @property
    def reusable(self) -> bool:
        """Whether the response was read to its end, and the connection may carry another request."""
        return self._reader.reusable and not self._reader.buffered

    def interrupt(self) -> None:
        """End what another thread waits for on this connection."""
        with suppress(OSError):
            # Not the method of an SSLSocket, which changes state that the reading thread uses.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()

    def __del__(self) -> None:
        # A client that is dropped without `close` ends its connections as one that was closed does.
        if "_socket" in self.__dict__:
            self._socket.close()

    def _send(self, head: bytes, body: bytes | None, deadline: float) -> HttpError | None:
        """Send a request, and return why a part of it could not be."""
        try:
            self._wait_until(deadline, sent=False)
            if body is None:
                self._socket.sendall(head)
            elif len(body) <= _JOINED_BYTES_MAX:
                self._socket.sendall(head + body)
            else:
                self._send_both(head, body, deadline)
        except TimeoutError as error:
            raise HttpError("the request could not be sent in time", sent=True) from error
        except OSError as error:
            failed = HttpError(f"the request could not be sent: {_reason(error)}", sent=True)
            failed.__cause__ = error
            return failed
        return None

    def _send_both(self, head: bytes, body: bytes, deadline: float) -> None:
        rest = memoryview(body)
        if self._is_tls:  # TLS has no sendmsg
            self._socket.sendall(head)
        else:
            rest = rest[max(0, self._socket.sendmsg([head, body]) - len(head)) :]
        while rest:
            self._wait_until(deadline, sent=True)
            rest = rest[self._socket.send(rest[:_READ_BYTES]) :]

    def _receive(self, deadline: float) -> None:
        self._wait_until(deadline, sent=True)
        try:
            data = self._socket.recv(_READ_BYTES)
        except TimeoutError as error:
            raise HttpError("the server did not answer in time", sent=True) from error
        except OSError as error:
            raise HttpError(f"the connection broke: {_reason(error)}", sent=True) from error
        if data:
            self._reader.feed(data)
        else:
            self._reader.end()

    def _wait_until(self, deadline: float, *, sent: bool) -> None:
        """Let the next operation of the socket wait until the deadline. Raises HttpError when that has passed."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise HttpError("the server did not answer in time", sent=sent)
        if abs(left - self._timeout) > _SLACK_S:
            self._socket.settimeout(left)
            self._timeout = left


def _connected(endpoint: Endpoint, deadline: float) -> socket.socket:
    """Return a socket that is connected to the server, through a proxy and TLS if there are. Raises HttpError."""
    deadline = min(deadline, time.monotonic() + CONNECT_S_MAX)
    raw: socket.socket | None = None
    try:
        raw = _dialled(endpoint, deadline)
        if (tunnel := endpoint.tunnel()) is not None:
            _open_tunnel(raw, tunnel, deadline)
        if endpoint.tls is None:
            return raw
        raw.settimeout(_left(deadline))
        return endpoint.tls.wrap_socket(raw, server_hostname=endpoint.host)
    except (OSError, ValueError) as error:
        if raw is not None:
            raw.close()
        raise HttpError(f"{endpoint.name} cannot be reached: {_reason(error)}", sent=False) from error
    except HttpError:
        if raw is not None:
            raw.close()
        raise


def _dialled(endpoint: Endpoint, deadline: float) -> socket.socket:
    if endpoint.unix_path is not None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.settimeout(_left(deadline))
            made.connect(endpoint.unix_path)
        except BaseException:
            made.close()
            raise
        return made
    host, port = endpoint.dialled
    failed: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(_left(deadline))
            made.connect(address)
        except OSError as error:
            made.close()
            failed = error
        except BaseException:
            made.close()
            raise
        else:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made
    raise failed or OSError(f"{host} has no address")


def _open_tunnel(raw: socket.socket, tunnel: bytes, deadline: float) -> None:
    reader = ResponseReader()
    reader.expect("CONNECT")
    raw.settimeout(_left(deadline))
    raw.sendall(tunnel)
    while not reader.complete:
        raw.settimeout(_left(deadline))
        # One byte at a time: what follows the head belongs to TLS.
        data = raw.recv(1)
        if not data:
            raise OSError("the proxy closed the connection")
        reader.feed(data)
    if not 200 <= reader.status < 300:
        raise OSError(f"the proxy answered with status {reader.status}")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)) or type(error).__name__


class Pool:
    """Connections to one server. Any number of threads may use it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._idle: deque[Connection] = deque()
        self._busy: set[Connection] = set()
        self.closed = False
        _pools.add(self)

    def take(self, deadline: float) -> Connection:
        """Return a connection for one exchange; it must be given back. Raises HttpError."""
        if self.closed:
            raise HttpError("the client is closed", sent=False)
        now = time.monotonic()
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = Connection(self._endpoint, deadline)
                break
            if connection.is_alive(now):
                break
            connection.close()
        self._busy.add(connection)
        self._interrupt_if_closed(connection)
        return connection

    def _interrupt_if_closed(self, connection: Connection) -> None:
        """End a connection that was taken while another thread closed the pool."""
        if self.closed:
            connection.interrupt()

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next exchange if its response was read to the end; close it otherwise."""
        self._busy.discard(connection)
        if self.closed or not connection.reusable:
            connection.close()
            return
        connection.idle_since = time.monotonic()
        self._idle.append(connection)

    def exchange(self, method: str, head: bytes, body: bytes | None, deadline: float) -> Reply:
        """Send a request and return the whole response. Raises HttpError."""
        connection = self.take(deadline)
        try:
            return connection.exchange(method, head, body, deadline)
        finally:
            self.give_back(connection)

    def close(self) -> None:
        """Close all connections. Exchanges that wait on one end with an HttpError."""
        self.closed = True
        for connection in list(self._busy):
            connection.interrupt()
        self._close_idle()

    def forget(self) -> None:
        """Close this process's copies of all connections, without a word to the server: they belong to the parent."""
        for connection in self._busy:
            connection.close()
        self._busy = set()
        self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()


_pools: WeakSet[Pool] = WeakSet()


def _forget_all() -> None:
    for pool in list(_pools):
        pool.forget()


os.register_at_fork(after_in_child=_forget_all)
