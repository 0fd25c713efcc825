"""A new connection, until its first bytes show which protocol it uses.

HTTP/2 begins with a preface that is not an HTTP/1 request (RFC 9113 §3.4); everything else is HTTP/1. A connection
above the limit gets a 503 at once, in HTTP/1, and is closed; its bytes are not read.

The loop sets TCP_NODELAY on every socket it accepts.
"""

import asyncio
from typing import TYPE_CHECKING, cast

from driftq.http.reply import encode_head
from driftq.http.request import Request
from driftq.http.request_id import id_of
from driftq.http.transport.connection_context import Serving
from driftq.http.transport.h1.reply_order import LINGER_MS
from driftq.http.transport.h1.request_parser import Http1
from driftq.http.transport.outbox import HIGH_WATER, LOW_WATER
from driftq.http.v0.errors import refusal
from driftq.system.runtime import Timer

if TYPE_CHECKING:
    from driftq.http.transport.h2.h2_connection import Http2

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class ServerConnection(asyncio.Protocol):
    """Detects the protocol of a peer, then passes the transport on to `Http1` or `Http2`."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._transport: asyncio.Transport | None = None
        self._timer: Timer | None = None
        self._refused = False
        self._first = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timer for the first bytes, or refuse the connection if there are too many."""
        serving = self._serving
        self._transport = found = cast("asyncio.Transport", transport)
        if 0 < serving.terms.connections_max <= len(serving.peers):
            self._refuse(found)
            return
        found.set_write_buffer_limits(HIGH_WATER, LOW_WATER)
        serving.peers.add(self)
        self._timer = serving.runtime.later(serving.terms.header_timeout_ms, found.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection, which was lost before its protocol was known."""
        if self._timer is not None:
            self._timer.cancel()
        self._serving.peers.discard(self)

    def data_received(self, data: bytes) -> None:
        """Collect the first bytes until they decide the protocol, then pass them on."""
        if self._refused:
            return
        assert self._transport is not None
        assert self._timer is not None
        self._first += data
        if len(self._first) < len(PREFACE) and PREFACE.startswith(self._first):
            return
        self._timer.cancel()
        speaker = self._speaker(self._transport)
        self._serving.peers.replace(self, speaker)
        self._transport.set_protocol(speaker)
        speaker.data_received(self._first)

    def _speaker(self, transport: asyncio.Transport) -> "Http1 | Http2":
        if not self._first.startswith(PREFACE):
            return Http1(self._serving, transport)
        # Imported on first use: few clients need HTTP/2, and a start should not wait for the import.
        from driftq.http.transport.h2.h2_connection import Http2

        return Http2(self._serving, transport)

    def finish(self) -> None:
        """Close the connection: it has not sent a request yet."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Abort the connection without waiting for unsent bytes."""
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, transport: asyncio.Transport) -> None:
        most = self._serving.terms.connections_max
        message = f"connection limit reached (max_connections={most})"
        detail = {"limit": "max_connections", "max": most}
        reply = refusal("throttled", message, (b"retry-after", b"1"), detail=detail, status=503)
        self._refused = True
        request = Request("", "")
        self._serving.requests.answered(request, reply, transport)
        head = encode_head(reply, reply.size, request_id=id_of(request), keep_alive=False, old=False)
        transport.write(head + reply.body)
        transport.write_eof()
        self._timer = self._serving.runtime.later(LINGER_MS, transport.abort)
