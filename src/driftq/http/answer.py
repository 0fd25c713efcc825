"""The kinds of answer that a handler can return: a reply, a promise of a reply, a stream, or a WebSocket.

A stream needs no task: its source drives it. The connection calls these methods of the source:
    opened   once, when the response head has been written
    room     each time the sink accepts more data again, after it was full
    closed   once, when the peer is gone or either side has closed the stream. It is the last call. It also comes for a
             stream that was never opened (HEAD, a failed handshake); the source releases its resources here
    goodbye  when the server shuts down: the source writes its last data and closes the sink
A source checks `sink.room` before it renders more data. So a peer that does not read costs only the memory of what has
already been written for it.

Every sink keeps these rules, and one test drives all of them through the same script:
- Bytes arrive once and in order. From 64 KiB of unread bytes there is no room.
- `room` is called once for each time that there was no room, and only while there is room. Neither `room` nor `closed`
  is called from inside a method of the sink.
- After `close` the peer gets everything written, and then a regular end, if it reads in time. After `cut`, or after an
  exception in the source, the peer sees that the stream is incomplete, and only `closed` is called.
"""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.request_id import fresh, id_of
from driftq.system.runtime import Pending


class Sink(Protocol):
    """Where a stream source writes the bytes for its peer."""

    @property
    def room(self) -> bool:
        """False when the peer's buffer is full. Writing is still allowed but grows memory without bound."""
        ...

    @property
    def unsent(self) -> int:
        """Bytes that were written and that the peer has not read yet; for a stuck peer this number never falls."""
        ...

    def write(self, data: bytes) -> None:
        """Write bytes to the peer. Writes of one loop turn are sent together. After the end a write does nothing."""
        ...

    def push(self, data: bytes) -> None:
        """Like `write`, for the last write of a loop turn: sent at once if nothing is queued before it."""
        ...

    def close(self) -> None:
        """End the stream after everything written has been sent; the wait for a peer that does not read is limited."""
        ...

    def cut(self) -> None:
        """End the stream now, in a way that shows the peer that the stream is incomplete."""
        ...


class StreamSource(Protocol):
    """The producer of a stream's data (see the module docstring for the order of calls)."""

    def opened(self, sink: Sink) -> None:
        """Start the stream: the head has been written, and `sink` accepts data."""
        ...

    def room(self) -> None:
        """Continue writing: the sink was full and accepts data again."""
        ...

    def closed(self) -> None:
        """Release everything that the stream holds; no other call follows."""
        ...

    def goodbye(self) -> None:
        """Write the last data and close the sink, because the server shuts down."""
        ...


class StreamAnswer(Struct, frozen=True):
    """A reply whose body has no length: chunks on HTTP/1.1, DATA frames on HTTP/2. Never compressed."""

    source: StreamSource
    status: int = 200
    content_type: bytes = b"text/event-stream"
    headers: tuple[tuple[bytes, bytes], ...] = ()


class SocketSink(Protocol):
    """Where a WebSocket source sends the messages for its peer."""

    @property
    def room(self) -> bool:
        """False when the peer's buffer is full. Sending is still allowed but grows memory without bound."""
        ...

    def send(self, text: bytes) -> None:
        """Send one text message, encoded as UTF-8. After the end it does nothing."""
        ...

    def listen(self, wanted: bool) -> None:
        """Start or stop reading from the peer. A source with too much unfinished work stops reading for a while."""
        ...

    def close(self, code: int = 1000) -> None:
        """Close the WebSocket after everything sent so far has left."""
        ...


class SocketSource(Protocol):
    """The server side of one WebSocket. Works like `StreamSource`, and receives messages too."""

    def opened(self, sink: SocketSink) -> None:
        """Start the session: the handshake is complete, and `sink` accepts messages."""
        ...

    def received(self, message: str | bytes) -> None:
        """Handle one complete message: `str` if it was text, `bytes` if it was binary."""
        ...

    def room(self) -> None:
        """Continue sending: the sink was full and accepts messages again."""
        ...

    def closed(self) -> None:
        """Release everything that the session holds; no other call follows."""
        ...

    def goodbye(self) -> None:
        """Send the last messages and close the sink, because the server shuts down."""
        ...


class Upgrade(Struct, frozen=True):
    """Continue as a WebSocket. If the request is not a handshake, it gets a `400`, and only `closed` is called."""

    source: SocketSource


class Promise(Pending[Reply], eq=False):
    """A reply that comes later. Errors are already turned into envelopes, so the receiver need not check for them."""


def promised(answer: Pending[Reply], finish: Callable[[Pending[Reply]], Reply]) -> Reply | Promise:
    """Return what `finish` makes of the settled `answer`: a reply if it is settled now, else a promise."""
    if answer.settled:
        return finish(answer)
    promise = Promise()
    answer.then(lambda done: promise.resolve(finish(done)))
    return promise


Answer = Reply | StreamAnswer | Upgrade | Pending[Reply]


class ReplySlot(Struct, eq=False):
    """The place of one reply in the order of the replies of a connection."""

    request: Request | None
    keep_alive: bool = True
    old: bool = False
    """Whether the client speaks HTTP/1.0."""
    coded: bool = False
    """Whether the request body is compressed and must be decompressed first."""
    answer: Reply | StreamAnswer | Upgrade | bytes | None = None
    """`bytes` are a complete answer, written to the connection unchanged."""

    @property
    def with_body(self) -> bool:
        """Whether the reply has a body; a reply to HEAD does not."""
        return self.request is None or self.request.method != "HEAD"

    @property
    def request_id(self) -> bytes:
        """Return the request id for the answer; a request on the short path always gets a new id."""
        return fresh() if self.request is None else id_of(self.request)


class Replies(Protocol):
    """The replies of one connection, as the short path uses them."""

    def expect(self) -> ReplySlot:
        """Reserve the next place for a reply that comes in a later turn of the loop."""
        ...

    def tell(self, slot: ReplySlot, body: bytes) -> None:
        """Answer `200` with this JSON body."""
        ...

    def settle(self, slot: ReplySlot, reply: Reply) -> None:
        """Answer with this reply. If the slot has a request, the access log gets a line."""
        ...


Shortcut = Callable[[bytes, Replies], bool]
"""Handles the body of a request and reserves a reply, or does nothing and returns False."""
