"""One HTTP/2 connection, by prior knowledge and without TLS. `h2` implements the protocol; this module answers.

Requests, replies, streams and limits are the same as for HTTP/1; a WebSocket is refused (http-v0 §1.1).

Invariants
- An exchange never waits for another one: bytes without a window stay with their exchange, and exchanges that have a
  window take turns.
- Frames of one loop turn leave together. While a peer does not read, the server does not read from it.
- A peer that causes work without requests (resets, pings, settings, empty frames) is disconnected with
  ENHANCE_YOUR_CALM. The work it can cause is limited by `TROUBLE_MAX`, by the number of concurrent exchanges, and by
  the total bytes of unfinished bodies.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from h2 import events
from h2.errors import ErrorCodes
from h2.exceptions import H2Error
from hyperframe.frame import GoAwayFrame

from driftq.http.answer import StreamAnswer, Upgrade
from driftq.http.reply import Reply
from driftq.http.request import Headers, Request
from driftq.http.transport.chunk_stream import tell_closed
from driftq.http.transport.connection_context import Serving
from driftq.http.transport.h1.reply_order import LINGER_MS
from driftq.http.transport.h1.request_parser import BODY_STEP
from driftq.http.transport.h2.h2_exchange import Exchange
from driftq.http.transport.h2.h2_heads import EXCHANGES_MAX, head_problem, protocol, read_head, write_head
from driftq.http.transport.h2.h2_sender import Rounds
from driftq.http.transport.request_flow import ask, refused
from driftq.http.v0.errors import refusal
from driftq.system.runtime import Timer

PING_MS = 20_000
"""The interval between pings, which is also the time the peer has to answer one, in ms."""
TROUBLE_MAX = 1000
"""Limit for frames that cause work without a request, minus answers sent; the count is halved at every check."""

_LOOKS = 4
_FRAME_HEAD_BYTES = 9


class Http2(asyncio.Protocol):
    """One HTTP/2 connection: callbacks of the loop come first in the class, then the handling of requests."""

    def __init__(self, serving: Serving, transport: asyncio.Transport) -> None:
        self._serving = serving
        self._transport = transport
        self._body_bytes_max = serving.terms.body_bytes_max
        self._h2 = protocol()
        self._exchanges: dict[int, Exchange] = {}
        self._rounds = Rounds(serving.runtime, transport, self._h2, on_sent=self._sent, on_failed=self._forget)
        self._body_bytes = 0
        """Body bytes of all incomplete requests."""
        self._asked = 0
        """Requests without an answer, including those that the peer has reset."""
        self._last_number = 0
        self._trouble = 0
        self._over = False
        self._last = False
        self._leaving: Timer | None = None
        self._pinged = False
        self._idle_ms = self._full_ms = 0
        self._since_ping_ms = 0
        terms = serving.terms
        shortest = min(terms.body_timeout_ms, terms.keepalive_timeout_ms, PING_MS)
        self._look_ms = max(1, shortest // _LOOKS)
        self._timer: Timer = serving.runtime.later(self._look_ms, self._look)
        self._on: dict[type[events.Event], Callable[[Any], None]] = {
            events.RequestReceived: self._on_request,
            events.DataReceived: self._on_data,
            events.StreamEnded: self._on_ended,
            events.StreamReset: self._on_reset,
            events.WindowUpdated: self._on_window,
            events.RemoteSettingsChanged: self._on_settings,
            events.PingReceived: self._on_trouble,
            events.PingAckReceived: self._on_pong,
            events.PriorityUpdated: self._on_trouble,
            events.UnknownFrameReceived: self._on_trouble,
            events.ConnectionTerminated: self._on_goaway,
        }

    # Callbacks of the loop

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers and end all exchanges, because the peer is gone."""
        self._over = True
        self._timer.cancel()
        if self._leaving is not None:
            self._leaving.cancel()
        self._serving.peers.discard(self)
        for exchange in list(self._exchanges.values()):
            exchange.end()
        self._exchanges.clear()
        self._rounds.close()

    def data_received(self, data: bytes) -> None:
        """Process received frames or parts of frames, then send what is ready."""
        if self._leaving is not None:
            return
        self._rounds.begin()
        try:
            found = self._h2.receive_data(data)
            for event in found:
                handle = self._on.get(type(event))
                if handle is not None:
                    handle(event)
        except H2Error:
            # h2 has already queued the error frames for `data_to_send`.
            self._leave()
            return
        if self._trouble > TROUBLE_MAX or self._asked > 2 * EXCHANGES_MAX:
            self._dismiss(ErrorCodes.ENHANCE_YOUR_CALM)
        elif len(self._h2.incoming_buffer._data) > self._h2.max_inbound_frame_size + _FRAME_HEAD_BYTES:
            # h2 would buffer a whole frame of up to 16 MiB before it rejects the frame as too long.
            self._dismiss(ErrorCodes.FRAME_SIZE_ERROR)
        else:
            self._rounds.flush()

    def eof_received(self) -> bool:
        """Abort the connection, because the peer has closed its side."""
        self._transport.abort()
        return False

    def pause_writing(self) -> None:
        """Stop reading and sending, because the peer does not read."""
        self._rounds.full = True
        for exchange in self._exchanges.values():
            exchange.tight = True
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Continue reading and sending, because the peer reads again."""
        self._rounds.full = False
        if self._transport.is_closing():
            return
        self._transport.resume_reading()
        self._rounds.flush()
        for exchange in list(self._exchanges.values()):
            exchange.tell_room()

    def finish(self) -> None:
        """Refuse new requests and close after the current ones are answered, because the server shuts down."""
        if not self._last and not self._over and self._leaving is None:
            self._last = True
            # After a GOAWAY made by h2 itself, h2 would send nothing more.
            self._transport.write(GoAwayFrame(0, last_stream_id=self._last_number).serialize())
            for exchange in list(self._exchanges.values()):
                exchange.goodbye()
            if not self._exchanges:
                self._leave()

    def abort(self) -> None:
        """Abort the connection without waiting for unsent bytes."""
        self._transport.abort()

    # Called by exchanges

    def cut(self, exchange: Exchange) -> None:
        """Reset the exchange with INTERNAL_ERROR; the source's `closed` is called in the next loop turn."""
        source, exchange.source = exchange.source, None
        self._reset(exchange, ErrorCodes.INTERNAL_ERROR)
        if source is not None:
            self._serving.runtime.soon(lambda: tell_closed(source.closed))

    def part(self, exchange: Exchange) -> None:
        """Call the source's `closed` soon; reset the exchange if the peer has not read the rest after `LINGER_MS`."""
        self._serving.runtime.soon(exchange.tell_closed)
        self._serving.runtime.later(LINGER_MS, lambda: self._reset(exchange, ErrorCodes.CANCEL))

    # Events of the peer

    def _on_request(self, event: events.RequestReceived) -> None:
        number = event.stream_id
        self._last_number = number
        # A priority in the head of a request is not an extra frame.
        self._trouble -= event.priority_updated is not None
        if self._last:
            self._h2.reset_stream(number, ErrorCodes.REFUSED_STREAM)
            return
        exchange = read_head(self, self._rounds, number, event.headers)
        exchange.ended = event.stream_ended is not None
        self._exchanges[number] = exchange
        problem = head_problem(exchange)
        length = next((value for name, value in exchange.headers if name == b"content-length"), b"0")
        if problem is not None:
            self._refuse(exchange, problem)
        elif int(length) > self._body_bytes_max:
            self._take(exchange, oversized=True)
        elif (b"expect", b"100-continue") in exchange.headers:
            self._h2.send_headers(number, [(b":status", b"100")])

    def _on_data(self, event: events.DataReceived) -> None:
        data = event.data or b""
        self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        exchange = self._exchanges.get(event.stream_id)
        self._trouble += not data
        if exchange is None or exchange.heard:
            return
        exchange.body.append(data)
        if (exchange.body_bytes + len(data)) // BODY_STEP > exchange.body_bytes // BODY_STEP:
            exchange.looks = 0
        exchange.body_bytes += len(data)
        self._body_bytes += len(data)
        if exchange.body_bytes > self._body_bytes_max:
            self._take(exchange, oversized=True)
        elif self._body_bytes > 2 * self._body_bytes_max:
            # Nothing was done for this request yet, so the peer may send it again later.
            self._reset(exchange, ErrorCodes.REFUSED_STREAM)

    def _on_ended(self, event: events.StreamEnded) -> None:
        exchange = self._exchanges.get(event.stream_id)
        if exchange is not None:
            exchange.ended = True
            if not exchange.heard:
                self._take(exchange, oversized=False)

    def _on_reset(self, event: events.StreamReset) -> None:
        self._trouble += 1
        exchange = self._exchanges.get(event.stream_id)
        if exchange is not None:
            self._forget(exchange)

    def _on_window(self, event: events.WindowUpdated) -> None:
        exchange = self._exchanges.get(event.stream_id)
        if exchange is not None:
            self._rounds.post(exchange)
        elif not event.stream_id:
            self._rounds.more = True

    def _on_settings(self, _: events.RemoteSettingsChanged) -> None:
        self._trouble += 1
        self._rounds.more = True

    def _on_trouble(self, _: events.Event) -> None:
        self._trouble += 1

    def _on_pong(self, _: events.PingAckReceived) -> None:
        self._pinged = False

    def _on_goaway(self, _: events.ConnectionTerminated) -> None:
        """Close the connection: h2 sends nothing more after the peer's GOAWAY."""
        self._leave()

    # Requests

    def _take(self, exchange: Exchange, *, oversized: bool) -> None:
        """Have a request answered; the rest of an oversized one is ignored."""
        exchange.heard = True
        self._body_bytes -= exchange.body_bytes
        exchange.body_bytes = 0
        body = b"" if oversized else b"".join(exchange.body)
        exchange.body = []
        request = Request.of(exchange.method, exchange.target, exchange.headers, body, oversized=oversized)
        exchange.request = request
        self._asked += 1
        ask(self._serving, request, lambda answer: self._give(exchange, request, answer), self._transport)

    def _give(self, exchange: Exchange, request: Request, answer: Reply | StreamAnswer | Upgrade) -> None:
        self._asked -= 1
        if isinstance(answer, Reply):
            self._reply(exchange, answer)
        elif isinstance(answer, Upgrade):
            tell_closed(answer.source.closed)
            self._reply(exchange, refusal("invalid_request", "WebSockets are supported only over HTTP/1.1"))
        elif exchange.over:
            tell_closed(answer.source.closed)
        else:
            self._open(exchange, request, answer)

    def _refuse(self, exchange: Exchange, reply: Reply) -> None:
        """Refuse an incomplete request; the rest of it is ignored."""
        exchange.heard = True
        exchange.request = Request.of(exchange.method, exchange.target, exchange.headers, b"")
        self._serving.requests.answered(exchange.request, reply, self._transport)
        self._reply(exchange, reply)

    # Answers

    def _reply(self, exchange: Exchange, reply: Reply) -> None:
        if exchange.over:
            return
        head = write_head(exchange, reply.status, reply.content_type, reply.headers)
        if reply.content_type:
            head.append((b"content-length", b"%d" % reply.size))
        if exchange.method != b"HEAD":
            for part in (reply.body, *reply.more):
                if part:
                    exchange.put(part)
        exchange.ending = True
        self._send_head(exchange, head)

    def _open(self, exchange: Exchange, request: Request, stream: StreamAnswer) -> None:
        head = write_head(exchange, stream.status, stream.content_type, stream.headers)
        if request.method == "HEAD":
            tell_closed(stream.source.closed)
            exchange.ending = True
            self._send_head(exchange, head)
            return
        self._send_head(exchange, head)
        exchange.open(stream.source)

    def _send_head(self, exchange: Exchange, head: Headers) -> None:
        exchange.answered = True
        self._trouble = max(0, self._trouble - 1)
        end = exchange.ending and exchange.empty
        try:
            self._h2.send_headers(exchange.number, head, end_stream=end)
        except H2Error:
            self._forget(exchange)
            return
        if end:
            self._sent(exchange)
        self._rounds.post(exchange)

    def _sent(self, exchange: Exchange) -> None:
        """Forget an exchange whose answer is sent; stop a peer that is still sending the request."""
        if not exchange.ended:
            with suppress(H2Error):
                self._h2.reset_stream(exchange.number, ErrorCodes.NO_ERROR)
        self._forget(exchange)

    def _reset(self, exchange: Exchange, code: ErrorCodes) -> None:
        if exchange.over or self._over or self._leaving is not None:
            return
        with suppress(H2Error):
            self._h2.reset_stream(exchange.number, code)
        self._forget(exchange)
        self._rounds.write()

    def _forget(self, exchange: Exchange) -> None:
        self._body_bytes -= exchange.body_bytes
        exchange.body_bytes = 0
        self._exchanges.pop(exchange.number, None)
        self._rounds.forget(exchange)
        exchange.end()
        if self._last and not self._exchanges:
            self._serving.runtime.soon(self._leave)

    # Timeouts and closing

    def _look(self) -> None:
        """Check the timeouts: incomplete bodies, a peer that does not read, an idle connection; then ping."""
        if self._leaving is not None:
            return
        terms = self._serving.terms
        self._timer = self._serving.runtime.later(self._look_ms, self._look)
        self._trouble //= 2
        self._idle_ms = 0 if self._exchanges else self._idle_ms + self._look_ms
        self._full_ms = self._full_ms + self._look_ms if self._rounds.full else 0
        for exchange in [found for found in self._exchanges.values() if not found.heard]:
            exchange.looks += 1
            if exchange.looks * self._look_ms > terms.body_timeout_ms:
                message = "the body of the request took too long"
                self._refuse(exchange, refused(exchange.target, message, 408))
        if self._full_ms >= terms.keepalive_timeout_ms:
            self._transport.abort()
        elif self._idle_ms >= terms.keepalive_timeout_ms:
            self._dismiss(ErrorCodes.NO_ERROR)
        else:
            self._ping()

    def _ping(self) -> None:
        """Ping the peer, or abort if it has not answered the last ping. A peer that does not read is not pinged."""
        self._since_ping_ms += self._look_ms
        if self._since_ping_ms < PING_MS or self._rounds.full:
            return
        self._since_ping_ms = 0
        if self._pinged:
            self._transport.abort()
            return
        self._pinged = True
        self._h2.ping(b"driftq\x00\x00")
        self._rounds.write()

    def _dismiss(self, code: ErrorCodes) -> None:
        self._h2.close_connection(code, last_stream_id=self._last_number)
        self._leave()

    def _leave(self) -> None:
        """Send the last frames and close; abort after `LINGER_MS`."""
        if self._leaving is None and not self._over:
            self._leaving = self._serving.runtime.later(LINGER_MS, self._transport.abort)
            self._rounds.write()
            self._rounds.close()
            for exchange in list(self._exchanges.values()):
                self._forget(exchange)
            self._transport.close()
