"""The listening socket: chooses the address, checks that it is safe without keys, and accepts connections.

The function that answers requests may change while the server listens. A connection keeps the one that it started with.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from typing import NamedTuple

from driftq.config import Settings
from driftq.errors import StartError
from driftq.http.answer import Answer
from driftq.http.metrics.request_log import RequestLog
from driftq.http.request import Request
from driftq.http.transport.connection import ServerConnection
from driftq.http.transport.connection_context import Serving, Terms
from driftq.http.transport.head_cache import Finder
from driftq.system.disk import Disk, write_fully
from driftq.system.runtime import Runtime

_BACKLOG = 2048
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 20, "TCP_KEEPCNT": 3}
"""After 60 s without traffic the kernel probes the peer 3 times, 20 s apart."""


class ListenAddress(NamedTuple):
    """A numeric address to listen on."""

    family: socket.AddressFamily
    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return ipaddress.ip_address(self.host.partition("%")[0]).is_loopback

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if self.family == socket.AF_INET6 else f"{self.host}:{self.port}"


def choose_address(settings: Settings) -> ListenAddress:
    """Return the address to listen on. Raise StartError if it is reachable from outside without keys or permission."""
    open_to_all = settings.api_keys_given or settings.allow_insecure_no_auth
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a valid host name"
        raise StartError(f"cannot listen on {settings.host}: {reason}") from error
    addresses = [ListenAddress(family, str(to[0]), int(to[1])) for family, _, _, _, to in found]
    if not open_to_all and not all(address.loopback for address in addresses):
        raise StartError(
            f"{settings.host} is reachable from other machines, and there are no API keys: set DRIFTQ_API_KEYS,"
            " or DRIFTQ_ALLOW_INSECURE_NO_AUTH=1 to run without keys"
        )
    # A name may have several addresses. Listen on one, IPv4 first, because most clients try it first.
    return min(addresses, key=lambda address: address.family != socket.AF_INET)


class Listener:
    """A bound socket and the connections that it accepted."""

    def __init__(
        self,
        handle: Callable[[Request], Answer],
        runtime: Runtime,
        terms: Terms,
        shortcut: Finder | None = None,
        requests: RequestLog | None = None,
    ) -> None:
        self._serving = Serving(handle, runtime, terms, shortcut, requests)
        self._server: asyncio.Server | None = None

    def answer_with(self, handle: Callable[[Request], Answer], shortcut: Finder | None = None) -> None:
        """Use another function for new connections, and another short path for all connections."""
        self._serving.handle = handle
        self._serving.shortcut = shortcut
        self._serving.heads.forget()

    async def open(self, address: ListenAddress) -> ListenAddress:
        """Bind and accept connections. Returns the address with the actual port. Raise StartError on failure."""
        listening = socket.socket(address.family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _notice_the_dead(listening)
            listening.bind((address.host, address.port))
            self._server = await asyncio.get_running_loop().create_server(
                self._connection, sock=listening, backlog=_BACKLOG
            )
        except OSError as error:
            listening.close()
            raise StartError(f"cannot listen on {address}: {error.strerror}") from error
        return address._replace(port=listening.getsockname()[1])

    async def close(self, patience_s: float) -> None:
        """Stop accepting, wait up to `patience_s` seconds for the last replies, then abort the other connections."""
        if self._server is not None:
            self._server.close()
        self._serving.peers.finish()
        try:
            await asyncio.wait_for(self._serving.peers.wait_empty(), patience_s)
        except TimeoutError:
            self._serving.peers.abort()
        self._serving.packing.close()
        self._serving.requests.close()

    def _connection(self) -> ServerConnection:
        return ServerConnection(self._serving)


def _notice_the_dead(listening: socket.socket) -> None:
    """Turn on TCP keepalive, so that the kernel detects vanished peers; accepted sockets inherit the options."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def write_port_file(disk: Disk, path: str, address: ListenAddress) -> None:
    """Write the address to a file. A reader finds the whole address or no file. Raise StartError on failure."""
    beside = f"{path}.{address.port}.tmp"
    try:
        file = disk.create(beside)
        try:
            write_fully(file, [str(address).encode()], 0)
        finally:
            file.close()
        disk.rename(beside, path)
    except OSError as error:
        disk.unlink(beside)
        raise StartError(f"{path} cannot be written: {error.strerror}") from error
