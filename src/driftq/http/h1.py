"""One HTTP/1.1 connection: bytes in, requests out, replies in the order of the requests.

llhttp (httptools) parses; this module keeps the order, the limits and the life of the connection.

Invariants
- Replies leave in the order of their requests, whenever each is ready; what is ready at the end of a read leaves in one
  write. What stands behind a stream waits for its end.
- A request that breaks the rules of HTTP or a limit is answered with an envelope in its turn, and is the last one: what
  the bytes behind it mean is anybody's guess. They are read and dropped for a while, for closing a socket with unread
  bytes in it would take the envelope from the peer.
- A peer that does not read, or that asks faster than it is answered, is not read from until it has caught up, and what
  it has asked already is not taken up before: it costs its buffer and one answer.
"""

import asyncio
from collections import deque

import httptools

from driftq.errors import DriftQError
from driftq.http.answer import Stream, Upgrade
from driftq.http.chunks import ChunkSink, stream_head, tell_closed
from driftq.http.errors import error_reply, refusal
from driftq.http.outbox import HIGH_WATER, JOIN_MAX, write_parts
from driftq.http.reply import Reply, encode_head
from driftq.http.request import Headers, Request
from driftq.http.serving import Serving
from driftq.http.websocket import WebSocket, accept_handshake
from driftq.seam.runtime import Pending, Timer

TARGET_BYTES_MAX = 64 << 10
HEADER_BYTES_MAX = 64 << 10
HEADERS_MAX = 200
PIPELINE_MAX = 64
"""So many requests may wait for their replies before the peer is made to wait."""
LINGER_MS = 5000
"""How long a refused peer has to finish sending."""

_HEADER_FRAME = len(": \r\n")


class _Turn:
    """A place in the order of replies."""

    __slots__ = ("answer", "keep_alive", "old", "request")

    def __init__(self, request: Request | None, *, keep_alive: bool, old: bool) -> None:
        self.answer: Reply | Stream | Upgrade | bytes | None = None
        """Bytes are an answer that is written as it is."""
        self.request = request
        self.keep_alive = keep_alive
        self.old = old

    @property
    def with_body(self) -> bool:
        return self.request is None or self.request.method != "HEAD"


class Http1(asyncio.Protocol):
    """The loop's callbacks above, the parser's callbacks below."""

    def __init__(self, serving: Serving, transport: asyncio.Transport) -> None:
        self._serving = serving
        self._handle = serving.handle
        self._body_bytes_max = serving.terms.body_bytes_max
        self._transport: asyncio.Transport | None = transport
        self._parser = httptools.HttpRequestParser(self)
        self._turns: deque[_Turn] = deque()
        self._held: deque[_Turn] = deque()
        """Those of the turns whose requests nobody has taken up yet."""
        self._stream: ChunkSink | None = None
        self._blocked = False
        """A stream or a socket is open, or will be as soon as its turn comes: what is behind it waits."""
        self._socket: tuple[Upgrade, bytes] | None = None
        """A handshake that was accepted, and what is to be said to it, in its turn."""
        self._rest = b""
        self._feeding = False
        self._last = False
        """No further request is taken: the connection ends when those before are answered."""
        self._refused = False
        self._lingering: Timer | None = None
        self._full = False
        """The peer does not read what it was sent."""
        self._paused = False
        self._begin()

    # From the loop

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer is gone, and with it whoever waits for a reply."""
        self._serving.peers.discard(self)
        self._last = True
        self._transport = None
        for turn in self._turns:
            if isinstance(turn.answer, Stream | Upgrade):
                tell_closed(turn.answer.source.closed)
        self._hang_up()
        self._turns.clear()
        self._held.clear()
        if self._stream is not None:
            self._stream.lose()
        if self._lingering is not None:
            self._lingering.cancel()

    def data_received(self, data: bytes) -> None:
        """Take in what has come, and send what is ready."""
        if self._socket is not None:
            self._rest += data
            self._keep_pace()
            return
        self._feeding = True
        self._unread_head += len(data) if self._in_head else 0
        while data and not self._last:
            data = self._feed(data)
        if not self._last and self._in_head and self._unread_head > TARGET_BYTES_MAX + HEADER_BYTES_MAX:
            self._refuse(refusal("invalid_request", "the head of the request is too long", status=431))
        self._feeding = False
        self._flush()

    def eof_received(self) -> bool:
        """The peer sends no more; it may still read what it asked for. Who reads a stream and hangs up is gone."""
        self._last = True
        if self._stream is not None:
            self.abort()
        self._hang_up()
        return bool(self._turns) and self._stream is None

    def pause_writing(self) -> None:
        """The peer does not read."""
        self._full = True
        if self._stream is not None:
            self._stream.pause()
        self._keep_pace()

    def resume_writing(self) -> None:
        """It does again."""
        self._full = False
        if self._stream is not None:
            self._stream.resume()
        self._flush()

    def finish(self) -> None:
        """The server is going: end as soon as everything that was asked is answered."""
        self._last = True
        self._refused = False
        if self._stream is not None:
            self._stream.goodbye()
        self._hang_up()
        self._flush()

    def abort(self) -> None:
        """End now."""
        if self._transport is not None:
            self._transport.abort()

    # From the parser

    def on_message_begin(self) -> None:
        """A request begins."""
        self._begin()

    def on_url(self, url: bytes) -> None:
        """A part of the target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; behind the body a trailer, which nobody here asks for but which counts."""
        self._header_bytes += len(name) + len(value) + _HEADER_FRAME
        if not self._in_head:
            self._check_head()
        elif len(self._headers) <= HEADERS_MAX:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is there: refuse what is too long before its body is read."""
        self._in_head = False
        self._unread_head = 0
        self._check_head()
        for name, value in self._headers:
            if name == b"content-length" and int(value) > self._body_bytes_max:
                self._take_oversized()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._body_bytes += len(body)
        if self._body_bytes > self._body_bytes_max:
            self._take_oversized()
        elif not self._last:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """A whole request."""
        if self._last:
            return
        parser = self._parser
        body = self._body
        request = Request.of(
            parser.get_method(),
            bytes(self._target),
            self._headers,
            body[0] if len(body) == 1 else b"".join(body),
        )
        self._last = not parser.should_keep_alive()
        self._add(_Turn(request, keep_alive=not self._last, old=parser.get_http_version() == "1.0"))
        self._begin()

    # Requests

    def _begin(self) -> None:
        self._target = bytearray()
        self._headers: Headers = []
        self._header_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._in_head = True
        self._unread_head = 0

    def _feed(self, data: bytes) -> bytes:
        """Parse; what is returned is still to be parsed."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
            if self._socket is not None:
                self._rest = rest
                return b""
            # No other protocol is spoken here. The request was answered as if it had not asked for one.
            self._parser = httptools.HttpRequestParser(self)
            return rest
        except httptools.HttpParserError as error:
            self._refuse(refusal("invalid_request", f"this is not HTTP: {error}"))
        return b""

    def _check_head(self) -> None:
        if len(self._target) > TARGET_BYTES_MAX:
            self._refuse(refusal("invalid_request", f"the target is longer than {TARGET_BYTES_MAX} bytes", status=414))
        elif self._header_bytes > HEADER_BYTES_MAX or len(self._headers) > HEADERS_MAX:
            message = f"the headers are more than {HEADERS_MAX}, or longer than {HEADER_BYTES_MAX} bytes"
            self._refuse(refusal("invalid_request", message, status=431))

    def _take_oversized(self) -> None:
        """Have the request answered without its body, which is dropped, and with it all that comes behind."""
        if self._last:
            return
        self._last = self._refused = True
        request = Request.of(self._parser.get_method(), bytes(self._target), self._headers, b"", oversized=True)
        self._add(_Turn(request, keep_alive=False, old=False))

    def _refuse(self, reply: Reply) -> None:
        """Answer what was not even a request, in its turn, and take no further one."""
        if self._last:
            return
        self._last = self._refused = True
        turn = _Turn(None, keep_alive=False, old=False)
        turn.answer = reply
        self._turns.append(turn)

    def _add(self, turn: _Turn) -> None:
        """Take up a request, or have it wait where the peer has not taken what it asked for before."""
        self._turns.append(turn)
        if self._held or self._full or self._blocked:
            self._held.append(turn)
        else:
            self._take(turn)

    def _take(self, turn: _Turn) -> None:
        assert turn.request is not None
        answer = self._handle(turn.request)
        if isinstance(answer, Pending):
            answer.then(lambda done: self._settle(turn, done))
        else:
            self._give(turn, answer)

    def _settle(self, turn: _Turn, done: Pending[Reply]) -> None:
        if isinstance(done.error, DriftQError):
            answer = error_reply(done.error)
        elif done.error is not None:
            answer = refusal("internal", "the server made a mistake; its log says more")
        else:
            answer = done.result()
        self._give(turn, answer)
        if not self._feeding:
            self._flush()

    def _give(self, turn: _Turn, answer: Reply | Stream | Upgrade) -> None:
        turn.answer = answer
        if isinstance(answer, Reply):
            # So much is not collected: the transport says when it is too much.
            if answer.more or len(answer.body) > JOIN_MAX:
                self._send_ready()
        elif self._transport is None:
            tell_closed(answer.source.closed)
        elif isinstance(answer, Upgrade):
            self._accept(turn, answer)
        elif turn.with_body:
            self._blocked = True
        else:
            turn.answer = stream_head(answer, keep_alive=turn.keep_alive, chunked=not turn.old)
            tell_closed(answer.source.closed)

    def _accept(self, turn: _Turn, upgrade: Upgrade) -> None:
        """A WebSocket, if that is what was asked for; then no request can come any more."""
        assert turn.request is not None
        try:
            head = accept_handshake(turn.request)
        except DriftQError as error:
            turn.answer = error_reply(error)
            tell_closed(upgrade.source.closed)
        else:
            self._socket = upgrade, head
            self._blocked = True

    def _hang_up(self) -> None:
        """Nobody is to be kept waiting, and no place for somebody who may be gone: what can be answered now is."""
        for turn in list(self._turns):
            if turn.answer is None and turn.request is not None:
                turn.request.hang_up()

    # Answers

    def _flush(self) -> None:
        """Send the replies whose turn has come, and take up what has waited for that."""
        self._send_ready()
        self._feeding = True
        while self._held and not self._full and not self._blocked and self._transport is not None:
            self._take(self._held.popleft())
            self._send_ready()
        self._feeding = False
        transport = self._transport
        if transport is None or self._stream is not None:
            return
        if self._turns or not self._last:
            self._keep_pace()
        elif not self._refused:
            transport.close()
        elif self._lingering is None:
            self._lingering = self._serving.runtime.later(LINGER_MS, transport.close)
            transport.write_eof()

    def _send_ready(self) -> None:
        transport = self._transport
        turns = self._turns
        if transport is None or self._stream is not None:
            return
        parts: list[bytes] = []
        size = 0
        while turns and isinstance(answer := turns[0].answer, Reply | bytes):
            turn = turns.popleft()
            if isinstance(answer, bytes):
                parts.append(answer)
                continue
            keep_alive = turn.keep_alive and not (self._last and not turns)
            length = answer.size
            parts.append(encode_head(answer, length, keep_alive=keep_alive, old=turn.old))
            if turn.with_body:
                parts.append(answer.body)
                parts += answer.more
                size += length
        if parts:
            write_parts(transport, parts, size)
        if turns and turns[0].answer is not None:
            self._open(transport, turns.popleft())

    def _open(self, transport: asyncio.Transport, turn: _Turn) -> None:
        """A stream's turn, or a socket's, has come."""
        if self._socket is not None:
            upgrade, head = self._socket
            self._hand_over(transport, WebSocket(upgrade.source, transport, self._serving), head)
            return
        stream = turn.answer
        assert isinstance(stream, Stream)
        self._last |= turn.old
        head = stream_head(stream, keep_alive=turn.keep_alive and not self._last, chunked=not turn.old)
        self._stream = ChunkSink(
            stream.source, transport, self._serving.runtime, chunked=not turn.old, on_end=self._stream_ended
        )
        self._stream.open(head)

    def _hand_over(self, transport: asyncio.Transport, socket: WebSocket, head: bytes) -> None:
        transport.set_protocol(socket)
        self._serving.peers.replace(self, socket)
        self._transport = None
        if self._paused:
            transport.resume_reading()
        if self._full:
            socket.pause_writing()
        socket.open(head, self._rest)

    def _stream_ended(self) -> None:
        self._stream = None
        self._blocked = False
        self._flush()

    def _keep_pace(self) -> None:
        """Read from the peer, or do not, as it keeps up."""
        wait = self._full or len(self._turns) >= PIPELINE_MAX or len(self._rest) > HIGH_WATER
        transport = self._transport
        if wait == self._paused or transport is None or transport.is_closing():
            return
        self._paused = wait
        if wait:
            transport.pause_reading()
        else:
            transport.resume_reading()
