"""A WebSocket: the handshake and the connection after it. wsproto parses the frames; only text is sent.

Invariants
- The source gets whole messages in order, and none while it does not listen. A message has the size limit of a body.
- Messages sent in one loop turn leave in one write. While a peer does not read, the server does not read from it
  either, so a slow peer delays only itself.
- `closed` is called once, no matter which side began the close. The side that begins it waits for the other side's
  close frame, at most `CLOSE_MS`.
"""

import asyncio
import logging
from collections.abc import Callable

from wsproto.connection import SERVER, ConnectionState
from wsproto.connection import Connection as Frames
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import generate_accept_token

from driftq.errors import InvalidRequestError
from driftq.http.answer import SocketSource
from driftq.http.request import Request
from driftq.http.request_id import id_of
from driftq.http.transport.chunk_stream import tell_closed
from driftq.http.transport.connection_context import Serving
from driftq.http.transport.outbox import Outbox
from driftq.system.runtime import Timer

CLOSE_MS = 5000
"""How long the peer has to answer a close, in ms."""

_KEY_CHARS = 24
_log = logging.getLogger(__name__)


def accept_handshake(request: Request) -> bytes:
    """Return the bytes that accept a handshake. Raise InvalidRequestError if the request is not a handshake."""
    key = (request.header(b"sec-websocket-key") or b"").strip()
    upgrades = (request.header(b"upgrade") or b"").lower()
    connection = (request.header(b"connection") or b"").lower()
    if request.method != "GET" or b"websocket" not in _tokens(upgrades) or b"upgrade" not in _tokens(connection):
        raise InvalidRequestError("this path is a WebSocket, and the request is not a WebSocket handshake")
    if (request.header(b"sec-websocket-version") or b"").strip() != b"13" or len(key) != _KEY_CHARS:
        raise InvalidRequestError("the WebSocket handshake has no valid Sec-WebSocket-Key, or its version is not 13")
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
        b"x-request-id: %b\r\nsec-websocket-accept: %b\r\n\r\n" % (id_of(request), generate_accept_token(key))
    )


def _tokens(value: bytes) -> list[bytes]:
    return [token.strip() for token in value.split(b",")]


class WebSocket(asyncio.Protocol):
    """The connection after the handshake, and the sink of its source."""

    def __init__(self, source: SocketSource, transport: asyncio.Transport, serving: Serving) -> None:
        self._source = source
        self._transport = transport
        self._serving = serving
        self._frames = Frames(SERVER)
        self._outbox = Outbox(transport, serving.runtime, self._tell_room)
        self._parts: list[str | bytes] = []
        self._bytes = 0
        self._listens = True
        self._digesting = False
        self._full = False
        self._paused = False
        self._failed = False
        """Whether the source has raised: only its `closed` is called after that."""
        self._told = False
        self._closing: Timer | None = None

    # Called by the source

    @property
    def room(self) -> bool:
        """Whether the WebSocket is open and its outbox accepts data."""
        return self._frames.state is ConnectionState.OPEN and self._outbox.room

    def send(self, text: bytes) -> None:
        """Queue one text message; does nothing after the end."""
        if self._frames.state is ConnectionState.OPEN:
            self._outbox.put(_text_head(len(text)), text)

    def listen(self, wanted: bool) -> None:
        """Start or stop reading from the peer."""
        self._listens = wanted
        self._keep_pace()
        if wanted and not self._digesting:
            self._serving.runtime.soon(self._digest)

    def close(self, code: int = 1000) -> None:
        """Send a close frame, and wait for the peer's."""
        if self._frames.state is not ConnectionState.OPEN:
            return
        self._outbox.put(self._frames.send(CloseConnection(code=code)))
        self._hurry()
        self._serving.runtime.soon(self._tell_closed)
        self.listen(True)

    # Callbacks of the loop

    def open(self, head: bytes, rest: bytes) -> None:
        """Accept the handshake, and process the bytes that came after it."""
        self._outbox.put(head)
        self._call(lambda: self._source.opened(self))
        self._outbox.flush()
        self.data_received(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything, because the peer is gone."""
        self._serving.peers.discard(self)
        self._outbox.drop()
        if self._closing is not None:
            self._closing.cancel()
        self._tell_closed()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes and process their events."""
        if data and self._frames.state in (ConnectionState.OPEN, ConnectionState.LOCAL_CLOSING):
            self._frames.receive_data(data)
            self._digest()

    def eof_received(self) -> bool:
        """Return False, so that the transport closes: the peer left without a close frame."""
        return False

    def pause_writing(self) -> None:
        """Stop reading too, because the peer does not read."""
        self._full = True
        self._outbox.pause()
        self._keep_pace()

    def resume_writing(self) -> None:
        """Continue sending and reading, because the peer reads again."""
        self._full = False
        self._outbox.resume()
        self._keep_pace()

    def finish(self) -> None:
        """Let the source close the WebSocket, because the server shuts down."""
        if not self._told:
            self._call(self._source.goodbye)

    def abort(self) -> None:
        """Abort the connection without waiting for unsent bytes."""
        self._transport.abort()

    # Internals

    def _digest(self) -> None:
        """Process received events while the source listens."""
        if self._digesting:
            return
        self._digesting = True
        try:
            events = self._frames.events()
            while self._listens and (event := next(events, None)) is not None:
                self._take(event)
        finally:
            self._digesting = False

    def _take(self, event: Event) -> None:
        if isinstance(event, Message):
            self._take_message(event)
        elif isinstance(event, Ping) and self._frames.state is ConnectionState.OPEN:
            self._outbox.put(self._frames.send(event.response()))
        elif isinstance(event, CloseConnection):
            # Still open means that the bytes violate the protocol; the event contains the close frame for the peer.
            if self._frames.state in (ConnectionState.REMOTE_CLOSING, ConnectionState.OPEN):
                self._outbox.put(self._frames.send(event.response()))
            self._end()

    def _take_message(self, event: Message) -> None:  # type: ignore[type-arg]
        data = event.data
        self._bytes += len(data) if isinstance(data, bytes | bytearray) or data.isascii() else len(data.encode())
        if self._frames.state is not ConnectionState.OPEN:
            return
        if self._bytes > self._serving.terms.body_bytes_max:
            self.close(CloseReason.MESSAGE_TOO_BIG)
            return
        self._parts.append(bytes(data) if isinstance(data, bytearray) else data)
        if not event.message_finished:
            return
        parts, self._parts, self._bytes = self._parts, [], 0
        if isinstance(event, TextMessage):
            self._call(lambda: self._source.received("".join(parts)))  # type: ignore[arg-type]
        elif isinstance(event, BytesMessage):
            self._call(lambda: self._source.received(b"".join(parts)))  # type: ignore[arg-type]

    def _end(self) -> None:
        """Close the transport: both sides have sent their close frame."""
        self._outbox.flush()
        self._outbox.drop()
        self._hurry()
        self._transport.close()
        self._tell_closed()

    def _hurry(self) -> None:
        """Give the peer at most `CLOSE_MS` from now, for its close frame and for reading ours."""
        if self._closing is None:
            self._closing = self._serving.runtime.later(CLOSE_MS, self._transport.abort)

    def _tell_room(self) -> None:
        if self._frames.state is ConnectionState.OPEN:
            self._call(self._source.room)

    def _tell_closed(self) -> None:
        if not self._told:
            self._told = True
            tell_closed(self._source.closed)

    def _call(self, step: Callable[[], None]) -> None:
        if self._told or self._failed:
            return
        try:
            step()
        except Exception:  # noqa: BLE001  # a bug in one source ends one connection, not the server
            _log.exception("a WebSocket failed")
            self._failed = True
            self._outbox.drop()
            self._transport.abort()

    def _keep_pace(self) -> None:
        wait = self._full or not self._listens
        if wait == self._paused or self._transport.is_closing():
            return
        self._paused = wait
        if wait:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()


def _text_head(size: int) -> bytes:
    """Return the head of an unmasked, final text frame; the message itself is not copied."""
    if size < 126:
        return bytes((0x81, size))
    if size < 1 << 16:
        return b"\x81\x7e" + size.to_bytes(2, "big")
    return b"\x81\x7f" + size.to_bytes(8, "big")
