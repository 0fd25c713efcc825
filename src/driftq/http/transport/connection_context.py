"""What the connections of a listener share, and the list of them."""

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
    """Somebody who is connected, whatever they speak."""

    def finish(self) -> None:
        """The server is going: end as soon as everything that was asked is answered."""
        ...

    def abort(self) -> None:
        """End now."""
        ...


class Peers:
    """Everybody who is connected."""

    def __init__(self) -> None:
        self._all: set[Peer] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, peer: Peer) -> None:
        """One more."""
        self._all.add(peer)
        self._empty.clear()

    def discard(self, peer: Peer) -> None:
        """One less."""
        self._all.discard(peer)
        if not self._all:
            self._empty.set()

    def replace(self, peer: Peer, successor: Peer) -> None:
        """The same one, who goes on in another protocol."""
        self._all.discard(peer)
        self._all.add(successor)

    def finish(self) -> None:
        """Let everybody have their replies and go."""
        for peer in list(self._all):
            peer.finish()

    def abort(self) -> None:
        """Let everybody go now."""
        for peer in list(self._all):
            peer.abort()

    async def wait_empty(self) -> None:
        """Until everybody is gone."""
        await self._empty.wait()


class Terms(Struct, frozen=True, kw_only=True):
    """What a peer is allowed. The figures of time are the least a peer gets; it may be a quarter more."""

    body_bytes_max: int
    connections_max: int = 0
    header_timeout_ms: int = 60_000
    body_timeout_ms: int = 60_000
    keepalive_timeout_ms: int = 75_000

    @classmethod
    def of(cls, settings: Settings) -> "Terms":
        """Those that the settings give."""
        return cls(
            body_bytes_max=settings.limits.body_bytes_max,
            connections_max=settings.connections_max,
            header_timeout_ms=settings.header_timeout_ms,
            body_timeout_ms=settings.body_timeout_ms,
            keepalive_timeout_ms=settings.keepalive_timeout_ms,
        )


class Serving:
    """What a connection needs to know of the server."""

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
        """Finds the short way of requests with a head that is new, for whoever answers now."""
        self.runtime = runtime
        self.terms = terms
        self.peers = Peers()
        self.packing = Packing(runtime)
        self.heads = Heads()
        self.requests = requests or RequestLog(runtime)
