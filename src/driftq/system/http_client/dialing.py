"""Blocking connections to a server: by TCP or a Unix socket, through a proxy and with TLS if configured.

Every wait ends at the deadline, and another thread can end it before that. The system's resolver has no time limit, so
names are resolved in a thread of their own; a lookup that takes too long is left to that thread.
"""

import errno
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, cast

from driftq.system.http_client.http1 import Endpoint, HttpError, ResponseReader

if TYPE_CHECKING:
    import ssl

CONNECT_S_MAX = 10.0

Address = tuple[int, int, int, tuple[str, int] | tuple[str, int, int, int]]
"""Family, type, protocol and address of a socket, as the resolver returns them."""


class ClientSocket:
    """The socket of one connection, from before it is connected. `end` may be called in any thread."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._ended = False
        self._resolved = threading.Event()

    def connect(self, endpoint: Endpoint, deadline: float) -> socket.socket:
        """Return the socket, connected to the server, through a proxy and with TLS if configured. Raises HttpError."""
        deadline = min(deadline, time.monotonic() + CONNECT_S_MAX)
        try:
            raw = self._dialled(endpoint, deadline)
            if (tunnel := endpoint.tunnel()) is not None:
                _open_tunnel(raw, tunnel, deadline)
            return raw if endpoint.tls is None else self._secured(raw, endpoint.tls, endpoint.host, deadline)
        except (OSError, ValueError, HttpError) as error:  # an HttpError: the answer of the proxy is not HTTP
            self.close()
            reason = str(error) if isinstance(error, HttpError) else reason_of(error)
            raise HttpError(f"{endpoint.name} cannot be reached: {reason}", sent=False) from error
        except BaseException:
            self.close()
            raise

    def end(self) -> None:
        """Fail what another thread waits for on this socket, now or when it begins to connect it."""
        self._ended = True
        self._resolved.set()
        if self._socket is not None:
            with suppress(OSError):
                # Not the method of an SSLSocket, which changes state that the waiting thread uses.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket, if there is one."""
        if self._socket is not None:
            self._socket.close()

    def _check(self) -> None:
        if self._ended:
            raise ConnectionAbortedError("the client was closed")

    def _dialled(self, endpoint: Endpoint, deadline: float) -> socket.socket:
        if endpoint.unix_path is not None:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._connect(made, endpoint.unix_path, deadline)
            return made
        failed: OSError | None = None
        found = self._addresses(*endpoint.dialled, deadline)
        for number, (family, kind, protocol, address) in enumerate(found):
            made = socket.socket(family, kind, protocol)
            try:
                # An address that does not answer leaves time for the next ones.
                self._connect(made, address, time.monotonic() + _left(deadline) / (len(found) - number))
            except OSError as error:
                made.close()
                self._check()
                failed = error
            else:
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return made
        raise failed or OSError(f"{endpoint.dialled[0]} has no address")

    def _connect(self, made: socket.socket, address: object, deadline: float) -> None:
        """Connect a socket. Raises OSError."""
        self._socket = made
        made.settimeout(0)
        failure = made.connect_ex(cast("str", address))
        # A call of `end` before this check is seen here, one after it shuts down a socket that is connecting.
        self._check()
        if failure in (errno.EINPROGRESS, errno.EINTR):
            both = select.poll()
            both.register(made, select.POLLOUT)
            if not both.poll(_left(deadline) * 1000):
                raise TimeoutError("timed out")
            self._check()
            failure = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failure:
            raise OSError(failure, os.strerror(failure))
        made.settimeout(_left(deadline))

    def _addresses(self, host: str, port: int, deadline: float) -> list[Address]:
        """Return the addresses of a host, in the order in which to try them. Raises OSError."""
        if (known := literal_address(host, port)) is not None:
            return known
        lookup = Lookup(host, port, self._resolved.set)
        found = self._resolved.wait(_left(deadline))
        self._check()
        if not found:
            raise TimeoutError("timed out")
        return lookup.addresses()

    def _secured(self, raw: socket.socket, tls: "ssl.SSLContext", host: str, deadline: float) -> socket.socket:
        raw.settimeout(_left(deadline))
        secured = self._socket = tls.wrap_socket(raw, server_hostname=host, do_handshake_on_connect=False)
        self._check()
        secured.settimeout(_left(deadline))
        secured.do_handshake()
        self._check()
        return secured


class Lookup:
    """The addresses of a host, from a thread that nothing waits for; `done` is called there at the end."""

    def __init__(self, host: str, port: int, done: Callable[[], None]) -> None:
        self._place = host, port
        self._done = done
        self._found: list[Address] | OSError | UnicodeError = []
        threading.Thread(target=self._look_up, name="driftq-lookup", daemon=True).start()

    def addresses(self) -> list[Address]:
        """Return what was found. Raises OSError, or UnicodeError for a host that is not a name."""
        if isinstance(self._found, Exception):
            raise self._found
        return self._found

    def _look_up(self) -> None:
        try:
            self._found = _resolved(*self._place, 0)
        except (OSError, UnicodeError) as error:
            self._found = error
        self._done()


def literal_address(host: str, port: int) -> list[Address] | None:
    """Return the address of a host that is given as an IP address, None for a name."""
    try:
        ip_address(host)
    except ValueError:
        return None
    return _resolved(host, port, socket.AI_NUMERICHOST)


def _resolved(host: str, port: int, flags: int) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [cast("Address", (family, kind, protocol, address)) for family, kind, protocol, _, address in found]


def _open_tunnel(raw: socket.socket, tunnel: bytes, deadline: float) -> None:
    reader = ResponseReader()
    reader.expect("CONNECT")
    raw.settimeout(_left(deadline))
    raw.sendall(tunnel)
    while not reader.complete:
        raw.settimeout(_left(deadline))
        # One byte at a time: the bytes after the head belong to TLS.
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


def reason_of(error: Exception) -> str:
    """Return a text with the reason of an error."""
    if isinstance(error, TimeoutError):
        return "timed out"
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)) or type(error).__name__
