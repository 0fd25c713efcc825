"""An HTTP connection made of the standard library alone, for executors where DriftQ is not installed.

It accepts the same settings as `system/http_client` and gives each exchange a deadline. Only the lookup of a name has
the time limit of the system's resolver. It can be pickled by value.
"""

import io
import socket
import time
from base64 import b64encode
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

_PORTS = {"http": 80, "https": 443}


class ServerAccess(NamedTuple):
    """How to reach a server: certificates of an https connection, and an HTTP proxy."""

    ca_file: str | None = None
    """A PEM file with the certificates to trust instead of those of the system."""
    client_cert: str | None = None
    """A PEM file with the certificate and the key of this client."""
    proxy: str | None = None


class StandardConnection:
    """A connection to one server, kept open between exchanges."""

    def __init__(self, server: str, access: ServerAccess) -> None:
        parts = urlsplit(server)
        self._headers: dict[str, str] = {}
        self._prefix = ""
        self._connection: Any = _made(parts.scheme, parts.netloc.rpartition("@")[2], access)
        if access.proxy is None or parts.scheme == "http+unix":
            return
        via = urlsplit(access.proxy)
        credentials = {}
        if via.username:
            pair = f"{unquote(via.username)}:{unquote(via.password or '')}".encode()
            credentials["Proxy-Authorization"] = f"Basic {b64encode(pair).decode()}"
        port = self._connection.port
        self._connection.host, self._connection.port = via.hostname or "", via.port or _PORTS["http"]
        if parts.scheme == "https":
            self._connection.set_tunnel(parts.hostname or "", port, credentials)
        else:
            # Without TLS, a request to a proxy has the whole URL.
            self._headers = {"Host": parts.netloc.rpartition("@")[2], **credentials}
            self._prefix = f"http://{parts.netloc.rpartition('@')[2]}"

    def exchange(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None, deadline: float
    ) -> tuple[int, bytes]:
        """Send a request and return status and body of the answer. Raise OSError."""
        connection = self._connection
        try:
            if connection.sock is None:
                self._connect(deadline)
            connection.sock.deadline = deadline
            connection.request(method, self._prefix + path, body, self._headers | headers)
            reply = connection.getresponse()
            return reply.status, reply.read()
        except HTTPException as error:
            raise OSError(str(error) or type(error).__name__) from error

    def _connect(self, deadline: float) -> None:
        self._connection.timeout = _left(deadline)
        self._connection.connect()
        self._connection.sock = _TimedSocket(self._connection.sock)

    def close(self) -> None:
        """Close the connection. The next exchange opens a new one."""
        self._connection.close()


def _made(scheme: str, place: str, access: ServerAccess) -> Any:
    if scheme == "http+unix":
        return _UnixConnection(unquote(place))
    if scheme == "http":
        return HTTPConnection(place)
    import ssl

    context = ssl.create_default_context(cafile=access.ca_file)
    if access.client_cert is not None:
        context.load_cert_chain(access.client_cert)
    return HTTPSConnection(place, context=context)


class _UnixConnection(HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        """Connect to the socket. Raise OSError."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _TimedSocket:
    """What `http.client` uses of a socket, with a deadline for all of it."""

    def __init__(self, connected: socket.socket) -> None:
        self.deadline = 0.0
        self._connected = connected

    def sendall(self, data: bytes) -> None:
        """Send all bytes until the deadline. Raise OSError."""
        rest = memoryview(data)
        while rest:
            self.wait_until_deadline()
            rest = rest[self._connected.send(rest) :]

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a reader of an answer."""
        return io.BufferedReader(_TimedReader(self, self._connected.makefile("rb", buffering=0)))

    def wait_until_deadline(self) -> None:
        """Let the next operation wait until the deadline. Raise TimeoutError if that has passed."""
        self._connected.settimeout(_left(self.deadline))

    def close(self) -> None:
        """Close the socket once its readers are closed."""
        self._connected.close()


class _TimedReader(io.RawIOBase):
    """Reads from a socket until the deadline of its exchange."""

    def __init__(self, timed: _TimedSocket, raw: Any) -> None:
        self._timed = timed
        self._raw = raw

    def readable(self) -> bool:
        """Return True, because it has no other use."""
        return True

    def readinto(self, room: Any) -> Any:
        """Read some bytes until the deadline. Raise OSError."""
        self._timed.wait_until_deadline()
        return self._raw.readinto(room)

    def close(self) -> None:
        """Close the reader, and the socket if that was closed before."""
        self._raw.close()
        super().close()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
