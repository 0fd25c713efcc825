"""One connection: whoever it is, until its first bytes tell which protocol it speaks."""

import asyncio
from typing import cast

from driftq.http.h1 import Http1
from driftq.http.outbox import HIGH_WATER, LOW_WATER
from driftq.http.serving import Serving


class Connection(asyncio.Protocol):
    """Hands its transport to the one who understands the peer, and is gone."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer has come."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(HIGH_WATER, LOW_WATER)
        self._serving.peers.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone without a word."""
        self._serving.peers.discard(self)

    def data_received(self, data: bytes) -> None:
        """Its first bytes."""
        assert self._transport is not None
        speaker = Http1(self._serving, self._transport)
        self._serving.peers.replace(self, speaker)
        self._transport.set_protocol(speaker)
        speaker.data_received(data)

    def finish(self) -> None:
        """It has asked for nothing."""
        self.abort()

    def abort(self) -> None:
        """End now."""
        if self._transport is not None:
            self._transport.abort()
