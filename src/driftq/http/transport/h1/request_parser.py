"""The receiving half of an HTTP/1 connection: turns bytes into requests. llhttp (httptools) parses.

A request that violates HTTP or a limit gets an error envelope in its turn and is the last one, because the meaning of
the bytes after it is unknown. A body that is too long is refused by the app, which may have another reason to refuse.

Timeouts use one timer, which fires four times within the shortest timeout and counts how often the connection has not
changed. So a request never reads the clock for timeouts.

A request whose head was parsed before (`http/transport/head_cache`) and that arrives whole in one read bypasses the
parser. This happens only between two requests, so the parser need not know of it.
"""

import asyncio
from enum import Enum, auto

import httptools

from driftq.http.answer import ReplySlot
from driftq.http.request import Headers, Request
from driftq.http.transport.connection_context import Serving
from driftq.http.transport.h1.reply_order import Answering
from driftq.http.transport.head_cache import HEAD_KEPT_MAX, KnownHead
from driftq.http.transport.request_flow import refused
from driftq.system.runtime import Timer

TARGET_BYTES_MAX = 64 << 10
HEADER_BYTES_MAX = 64 << 10
HEADERS_MAX = 200
BODY_STEP = 64 << 10
"""A peer must send at least this many bytes of a body within the body timeout; a slower one counts as stopped."""

_HEADER_FRAME = len(": \r\n")
_HEAD_SURE = min(TARGET_BYTES_MAX, HEADER_BYTES_MAX) // 2
_HEAD_END = b"\r\n\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_LOOKS = 4
"""How often the timer fires within the shortest timeout."""


class _State(Enum):
    """What the connection is waiting for."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    ANSWER = auto()
    STUCK = auto()


class Http1(asyncio.Protocol):
    """One HTTP/1 connection: callbacks of the loop come first in the class, then callbacks of the parser."""

    def __init__(self, serving: Serving, transport: asyncio.Transport) -> None:
        self._serving = serving
        self._transport = transport
        self._body_bytes_max = serving.terms.body_bytes_max
        self._answering = Answering(serving, transport, self)
        self._parser = httptools.HttpRequestParser(self)
        self._heads = serving.heads
        self._known = serving.heads.known
        self._newest: KnownHead | None = None
        self._newest_raw = b""
        """The head that was recognised last, and its bytes: the next head is usually equal."""
        self._requests = 0
        self._unread_head = 0
        """Bytes received since the head of the current request began."""
        self._fed = 0
        """Bytes of the read that is being processed."""
        self._seen = (_State.HEAD, 0, 0)
        self._looks = 0
        terms = serving.terms
        shortest = min(terms.header_timeout_ms, terms.body_timeout_ms, terms.keepalive_timeout_ms)
        self._look_ms = max(1, shortest // _LOOKS)
        self._timer: Timer = serving.runtime.later(self._look_ms, self._look)
        self._begin()

    # Callbacks of the loop

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer and drop all unanswered requests, because the peer is gone."""
        self._timer.cancel()
        self._serving.peers.discard(self)
        self._answering.lose()

    def data_received(self, data: bytes) -> None:
        """Process received bytes, and send the replies that are ready."""
        answering = self._answering
        if data.startswith(self._newest_raw) and self._take_like_newest(data):
            return
        if answering.upgraded:
            answering.keep(data)
            return
        answering.begin()
        if not self._begun and not answering.last:
            data = self._take_known(data)
        if data:
            self._hear(data)
        answering.flush()

    def eof_received(self) -> bool:
        """Accept no more requests. Returns whether the peer still waits for replies."""
        return self._answering.end()

    def pause_writing(self) -> None:
        """Stop answering until `resume_writing`, because the peer does not read."""
        self._answering.pause()

    def resume_writing(self) -> None:
        """Continue answering, because the peer reads again."""
        self._answering.resume()

    def finish(self) -> None:
        """Close as soon as all received requests are answered, because the server shuts down."""
        self._answering.finish()

    def abort(self) -> None:
        """Abort the connection without waiting for unsent bytes."""
        self._transport.abort()

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        """Note that the first byte of a request was parsed."""
        self._begun = True

    def on_url(self, url: bytes) -> None:
        """Add a part of the request target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. After the body it is a trailer: it is ignored, but its size counts."""
        if self._in_head:
            self._headers.append((name.lower(), value))
        else:
            self._trailer_bytes += len(name) + len(value) + _HEADER_FRAME
            if self._trailer_bytes > HEADER_BYTES_MAX:
                self._refuse_headers()

    def on_headers_complete(self) -> None:
        """Check the complete head: refuse one that is too long before its body is read."""
        self._in_head = False
        # The bytes since the head began are an upper bound of its length, and usually below the limit.
        if self._unread_head + self._fed > _HEAD_SURE or len(self._headers) > HEADERS_MAX:
            self._check_head()
        self._unread_head = 0
        expects = False
        for name, value in self._headers:
            if name == b"content-length":
                if int(value) > self._body_bytes_max:
                    self._take_oversized()
            elif name == b"content-encoding":
                self._coded = True
            elif name == b"connection":
                self._told = True
            elif name == b"expect":
                expects = value.strip().lower() == b"100-continue"
        if expects and not self._answering.last and self._parser.get_http_version() == "1.1":
            self._answering.say(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        """Add a part of the body, unless the body is too long."""
        self._body_bytes += len(body)
        if self._body_bytes > self._body_bytes_max:
            self._take_oversized()
        elif not self._answering.last:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """Build the request from its parts and have it answered."""
        answering = self._answering
        if answering.last:
            return
        parser, body = self._parser, self._body
        request = Request.of(
            parser.get_method(), self._target, self._headers, body[0] if len(body) == 1 else b"".join(body)
        )
        keep_alive = parser.should_keep_alive()
        if self._raw_head and keep_alive:
            self._heads.learn(self._raw_head, self._target, request, self._serving.shortcut)
        answering.last = not keep_alive
        # A client of HTTP/1.0 that sends no `Connection` header does not keep its connection open.
        old = (self._told or not keep_alive) and parser.get_http_version() == "1.0"
        answering.add(ReplySlot(request, keep_alive=keep_alive, old=old, coded=self._coded))
        self._requests += 1
        self._begin()

    # Internals

    def _take_like_newest(self, data: bytes) -> bool:
        """Start the one request in `data` if it is complete; the caller knows that its head equals the newest one."""
        newest, answering = self._newest, self._answering
        end = len(self._newest_raw)
        if newest is None or self._begun or answering.last or len(data) != end + newest.body_bytes:
            return False
        if answering.upgraded:
            return False
        self._requests += 1
        if not self._take_short(newest, data[end:]):
            answering.begin()
            answering.add(ReplySlot(newest.request(data[end:])))
            answering.flush()
        return True

    def _take_short(self, head: KnownHead, body: bytes) -> bool:
        """Start a request on the short path, if its head has one and no earlier request waits."""
        shortcut = head.shortcut
        return shortcut is not None and self._answering.free and shortcut(body, self._answering)

    def _take_known(self, data: bytes) -> bytes:
        """Start the leading requests with known heads. Returns the bytes from the first other or incomplete one on."""
        known, find, answering = self._known, self._heads.find, self._answering
        start = 0
        while True:
            end = data.find(_HEAD_END, start) + len(_HEAD_END)
            raw = data[start:end]
            head = known.get(raw)
            if head is not None:
                self._newest, self._newest_raw = head, raw
            else:
                head = find(raw)
                if head is None:
                    break
            stop = end + head.body_bytes
            if stop > len(data):
                break
            self._requests += 1
            body = data[end:stop]
            if not self._take_short(head, body):
                answering.add(ReplySlot(head.request(body)))
            start = stop
            if stop == len(data):
                return b""
        return data[start:]

    def _hear(self, data: bytes) -> None:
        """Pass bytes to the parser, and refuse a head that is too long."""
        if not self._begun:
            end = data.find(_HEAD_END, 0, HEAD_KEPT_MAX) + len(_HEAD_END)
            self._raw_head = data[:end] if end >= len(_HEAD_END) else b""
        self._fed = len(data)
        if self._in_head:
            self._unread_head += self._fed
        while data and not self._answering.last:
            data = self._feed(data)
        if self._in_head and self._unread_head > TARGET_BYTES_MAX + HEADER_BYTES_MAX:
            self._refuse("the head of the request is too long", 431)

    def _begin(self) -> None:
        self._begun = False
        """Whether the parser has seen the first byte of a request."""
        self._raw_head = b""
        """The bytes of its head if they came in one read. For a head that is not kept they may be other bytes."""
        self._target = b""
        self._headers: Headers = []
        self._trailer_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._coded = False
        self._told = False
        """Whether the request has a `Connection` header."""
        self._in_head = True
        self._unread_head = 0

    def _feed(self, data: bytes) -> bytes:
        """Parse bytes. Returns the bytes that are still to be parsed."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
            if self._answering.upgraded:
                self._answering.keep(rest)
                return b""
            # No other protocol is supported. The request was answered as if it had not asked for an upgrade.
            self._parser = httptools.HttpRequestParser(self)
            return rest
        except httptools.HttpParserError as error:
            self._refuse(f"invalid HTTP request: {error}", 400)
        return b""

    def _check_head(self) -> None:
        if len(self._target) > TARGET_BYTES_MAX:
            message = f"the target is longer than {TARGET_BYTES_MAX} bytes"
            self._refuse(message, 414)
            return
        size = sum(len(name) + len(value) + _HEADER_FRAME for name, value in self._headers)
        if size > HEADER_BYTES_MAX or len(self._headers) > HEADERS_MAX:
            self._refuse_headers()

    def _refuse_headers(self) -> None:
        message = f"the headers exceed a limit: {HEADERS_MAX} headers, {HEADER_BYTES_MAX} bytes"
        self._refuse(message, 431)

    def _refuse(self, message: str, status: int) -> None:
        """Refuse the request that is being read, and accept no further one."""
        request = Request.of(b"", self._target, self._headers, b"")
        self._answering.refuse(request, refused(self._target, message, status))

    def _take_oversized(self) -> None:
        """Have the request answered without its body; the body and all later bytes are dropped."""
        if not self._answering.last:
            method, target = self._parser.get_method(), self._target
            self._answering.add_last(Request.of(method, target, self._headers, b"", oversized=True))

    # Timeouts

    def _look(self) -> None:
        """Check whether the connection has been in the same state for too long."""
        if self._answering.over:
            return
        self._timer = self._serving.runtime.later(self._look_ms, self._look)
        state, progress = self._state()
        found = state, self._requests, progress
        self._looks = self._looks + 1 if found == self._seen else 0
        self._seen = found
        if self._looks * self._look_ms >= self._patience_ms(state):
            self._lose_patience(state)

    def _state(self) -> tuple[_State, int]:
        """Return the state, and a number that changes when the awaited part makes progress."""
        unsent = self._answering.unsent
        if unsent:
            return _State.STUCK, unsent
        if not self._in_head:
            return _State.BODY, self._body_bytes // BODY_STEP
        if self._unread_head:
            return _State.HEAD, 0
        return _State.ANSWER if self._answering.waiting else _State.IDLE, 0

    def _patience_ms(self, state: _State) -> float:
        terms = self._serving.terms
        return {
            _State.IDLE: terms.keepalive_timeout_ms,
            _State.STUCK: terms.keepalive_timeout_ms,
            _State.HEAD: terms.header_timeout_ms,
            _State.BODY: terms.body_timeout_ms,
            _State.ANSWER: float("inf"),
        }[state]

    def _lose_patience(self, state: _State) -> None:
        if state is _State.STUCK:
            self._transport.abort()
        elif state is _State.IDLE:
            self._answering.last = True
        else:
            part = "head" if state is _State.HEAD else "body"
            self._refuse(f"the {part} of the request took too long", 408)
        self._answering.flush()
