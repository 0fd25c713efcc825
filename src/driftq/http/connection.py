"""One HTTP/1.1 connection: bytes in, requests out, replies in the order of the requests.

llhttp (httptools) parses; this module keeps the order, the limits and the life of the connection.

Invariants
- Replies leave in the order of their requests, whenever each is ready; what is ready at the end of a read leaves in one
  write.
- A request that breaks the rules of HTTP or a limit is answered with an envelope in its turn, and is the last one: what
  the bytes behind it mean is anybody's guess. They are read and dropped for a while, for closing a socket with unread
  bytes in it would take the envelope from the peer.
- A peer that does not read, or that asks faster than it is answered, is not read from until it has caught up.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

import httptools

from driftq.errors import DriftQError
from driftq.http.answer import Answer
from driftq.http.errors import error_reply, refusal
from driftq.http.reply import Reply, encode_reply
from driftq.http.request import Headers, Request
from driftq.seam.runtime import Pending, Runtime, Timer

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

    __slots__ = ("keep_alive", "old", "reply", "request", "with_body")

    def __init__(self, request: Request | None = None, *, keep_alive: bool, old: bool, with_body: bool) -> None:
        self.reply: Reply | None = None
        self.request = request
        self.keep_alive = keep_alive
        self.old = old
        self.with_body = with_body


class Peers:
    """Everybody who is connected."""

    def __init__(self) -> None:
        self._all: set[Connection] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    def add(self, peer: "Connection") -> None:
        """One more."""
        self._all.add(peer)
        self._empty.clear()

    def discard(self, peer: "Connection") -> None:
        """One less."""
        self._all.discard(peer)
        if not self._all:
            self._empty.set()

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


class Connection(asyncio.Protocol):
    """The loop's callbacks above, the parser's callbacks below."""

    def __init__(
        self, handle: Callable[[Request], Answer], runtime: Runtime, peers: Peers, *, body_bytes_max: int
    ) -> None:
        self._handle = handle
        self._runtime = runtime
        self._peers = peers
        self._body_bytes_max = body_bytes_max
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpRequestParser | None = None
        self._turns: deque[_Turn] = deque()
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

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer has come."""
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpRequestParser(self)
        self._peers.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer is gone, and with it whoever waits for a reply."""
        self._peers.discard(self)
        self._last = True
        self._hang_up()
        self._turns.clear()
        self._transport = self._parser = None
        if self._lingering is not None:
            self._lingering.cancel()

    def data_received(self, data: bytes) -> None:
        """Take in what has come, and send what is ready."""
        self._feeding = True
        self._unread_head += len(data) if self._in_head else 0
        while data and not self._last:
            data = self._feed(data)
        if not self._last and self._in_head and self._unread_head > TARGET_BYTES_MAX + HEADER_BYTES_MAX:
            self._refuse(refusal("invalid_request", "the head of the request is too long", status=431))
        self._feeding = False
        self._flush()

    def eof_received(self) -> bool:
        """The peer sends no more; it may still read what it asked for."""
        self._last = True
        self._hang_up()
        return bool(self._turns)

    def pause_writing(self) -> None:
        """The peer does not read."""
        self._full = True
        self._keep_pace()

    def resume_writing(self) -> None:
        """It does again."""
        self._full = False
        self._keep_pace()

    def finish(self) -> None:
        """The server is going: end as soon as everything that was asked is answered."""
        self._last = True
        self._refused = False
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
                self._refuse_body()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._body_bytes += len(body)
        if self._body_bytes > self._body_bytes_max:
            self._refuse_body()
        elif not self._last:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """A whole request."""
        parser = self._parser
        if self._last or parser is None:
            return
        request = Request.of(parser.get_method(), bytes(self._target), self._headers, b"".join(self._body))
        self._last = not parser.should_keep_alive()
        old = parser.get_http_version() == "1.0"
        turn = _Turn(request, keep_alive=not self._last, old=old, with_body=request.method != "HEAD")
        self._turns.append(turn)
        answer = self._handle(request)
        if isinstance(answer, Reply):
            turn.reply = answer
        else:
            assert isinstance(answer, Pending)
            answer.then(lambda done: self._settle(turn, done))
        self._begin()

    # The rest

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
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # No other protocol is spoken here. The request was answered as if it had not asked for one.
            self._parser = httptools.HttpRequestParser(self)
            return data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            self._refuse(refusal("invalid_request", f"this is not HTTP: {error}"))
        return b""

    def _check_head(self) -> None:
        if len(self._target) > TARGET_BYTES_MAX:
            self._refuse(refusal("invalid_request", f"the target is longer than {TARGET_BYTES_MAX} bytes", status=414))
        elif self._header_bytes > HEADER_BYTES_MAX or len(self._headers) > HEADERS_MAX:
            message = f"the headers are more than {HEADERS_MAX}, or longer than {HEADER_BYTES_MAX} bytes"
            self._refuse(refusal("invalid_request", message, status=431))

    def _refuse_body(self) -> None:
        most = self._body_bytes_max
        message = f"the body is longer than {most} bytes"
        self._refuse(refusal("payload_too_large", message, detail={"max": most}))

    def _refuse(self, reply: Reply) -> None:
        """Answer what was not even a request, in its turn, and take no further one."""
        if self._last:
            return
        self._last = self._refused = True
        turn = _Turn(keep_alive=False, old=False, with_body=True)
        turn.reply = reply
        self._turns.append(turn)

    def _hang_up(self) -> None:
        """Nobody is to be kept waiting, and no place for somebody who may be gone: what can be answered now is."""
        for turn in list(self._turns):
            if turn.reply is None and turn.request is not None:
                turn.request.hang_up()

    def _settle(self, turn: _Turn, done: Pending[Reply]) -> None:
        if isinstance(done.error, DriftQError):
            turn.reply = error_reply(done.error)
        elif done.error is not None:
            turn.reply = refusal("internal", "the server made a mistake; its log says more")
        else:
            turn.reply = done.result()
        if not self._feeding:
            self._flush()

    def _flush(self) -> None:
        """Send the replies whose turn has come."""
        transport = self._transport
        if transport is None:
            return
        ready: list[bytes] = []
        turns = self._turns
        while turns and (reply := turns[0].reply) is not None:
            turn = turns.popleft()
            keep_alive = turn.keep_alive and not (self._last and not turns)
            ready.append(encode_reply(reply, keep_alive=keep_alive, old=turn.old, with_body=turn.with_body))
        if ready:
            transport.write(b"".join(ready))
        if turns or not self._last:
            self._keep_pace()
        elif not self._refused:
            transport.close()
        elif self._lingering is None:
            self._lingering = self._runtime.later(LINGER_MS, transport.close)
            transport.write_eof()

    def _keep_pace(self) -> None:
        """Read from the peer, or do not, as it keeps up."""
        wait = self._full or len(self._turns) >= PIPELINE_MAX
        transport = self._transport
        if wait == self._paused or transport is None or transport.is_closing():
            return
        self._paused = wait
        if wait:
            transport.pause_reading()
        else:
            transport.resume_reading()
