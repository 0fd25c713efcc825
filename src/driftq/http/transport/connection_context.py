"""The objects that all connections of a listener share, and the set of open connections."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from driftq.config import Settings
from driftq.http.answer import Answer
from driftq.http.gzip_encoding import Packing
from driftq.http.metrics.request_log import RequestLog
from driftq.http.request import Request
from driftq.http.transport.head_cache import Finder, Heads
from driftq.system.runtime import Runtime


class Peer(Protocol):
    """An open connection, of any protocol."""

    def finish(self) -> None:
        """Stop accepting requests and close after all received requests are answered; the server shuts down."""
        ...

    def abort(self) -> None:
        """Abort the connection without waiting for unsent bytes."""
        ...


class Peers:
    """The set of open connections."""

    def __init__(self) -> None:
        self._all: set[Peer] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, peer: Peer) -> None:
        """Add a connection that was opened."""
        self._all.add(peer)
        self._empty.clear()

    def discard(self, peer: Peer) -> None:
        """Remove a connection that was closed."""
        self._all.discard(peer)
        if not self._all:
            self._empty.set()

    def replace(self, peer: Peer, successor: Peer) -> None:
        """Replace a connection's object by another, after a change of protocol."""
        self._all.discard(peer)
        self._all.add(successor)

    def finish(self) -> None:
        """Call `finish` on every connection."""
        for peer in list(self._all):
            peer.finish()

    def abort(self) -> None:
        """Call `abort` on every connection."""
        for peer in list(self._all):
            peer.abort()

    async def wait_empty(self) -> None:
        """Wait until every connection is closed."""
        await self._empty.wait()


class Terms(Struct, frozen=True, kw_only=True):
    """Limits for each peer. Timeouts are minimums: a peer may get up to a quarter more."""

    body_bytes_max: int
    connections_max: int = 0
    header_timeout_ms: int = 60_000
    body_timeout_ms: int = 60_000
    keepalive_timeout_ms: int = 75_000

    @classmethod
    def of(cls, settings: Settings) -> "Terms":
        """Return the limits that the settings define."""
        return cls(
            body_bytes_max=settings.limits.body_bytes_max,
            connections_max=settings.connections_max,
            header_timeout_ms=settings.header_timeout_ms,
            body_timeout_ms=settings.body_timeout_ms,
            keepalive_timeout_ms=settings.keepalive_timeout_ms,
        )


class Serving:
    """Everything that a connection needs from the server."""

    def __init__(
        self,
        handle: Callable[[Request], Answer],
        runtime: Runtime,
        terms: Terms,
        shortcut: Finder | None = None,
        requests: RequestLog | None = None,
    ) -> None:
        self.handle = handle
        self.shortcut = shortcut
        """Finds the short path for requests with a new head; None if there is no short path."""
        self.runtime = runtime
        self.terms = terms
        self.peers = Peers()
        self.packing = Packing(runtime)
        self.heads = Heads()
        self.requests = requests or RequestLog(runtime)
