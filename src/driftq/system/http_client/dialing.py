"""Blocking connections to a server: by TCP or a Unix socket, through a proxy and with TLS if configured."""

import socket
import time

from driftq.system.http_client.http1 import Endpoint, HttpError, ResponseReader

CONNECT_S_MAX = 10.0


def connected(endpoint: Endpoint, deadline: float) -> socket.socket:
    """Return a socket that is connected to the server, through a proxy and with TLS if configured. Raises HttpError."""
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
        raise HttpError(f"{endpoint.name} cannot be reached: {reason_of(error)}", sent=False) from error
    except HttpError as error:  # the answer of the proxy is not HTTP
        if raw is not None:
            raw.close()
        raise HttpError(f"{endpoint.name} cannot be reached: {error}", sent=False) from error


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
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for number, (family, kind, protocol, _, address) in enumerate(found):
        made = socket.socket(family, kind, protocol)
        try:
            # An address that does not answer leaves time for the next ones.
            made.settimeout(_left(deadline) / (len(found) - number))
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
