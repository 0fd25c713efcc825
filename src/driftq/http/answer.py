"""What a handler may answer with: a reply, a promise of one, a stream, or a WebSocket.

A stream is driven by its source, without a task. The connection calls
    opened   once, when the head is on its way
    room     whenever the peer has read so much that the sink takes more, after it had no room
    closed   once, when the peer is gone or the stream has been closed, whoever began it; then nothing more. Also where
             it was never opened, by a HEAD or a failed handshake for example: what it holds is let go in there
    goodbye  when the server is going: say what there is to say, and close
A source checks `sink.room` before it renders: a peer that does not read costs what it has been sent and no more.
"""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.request_id import fresh, id_of
from driftq.system.runtime import Pending


class Sink(Protocol):
    """The way to the peer of one stream."""

    @property
    def room(self) -> bool:
        """May more be written? It may anyway, but who does pays with memory."""
        ...

    @property
    def unsent(self) -> int:
        """Bytes written that the peer has not taken: with a slow one they become fewer, with a stuck one never."""
        ...

    def write(self, data: bytes) -> None:
        """Hand bytes to the peer. Those of one loop turn leave together. After the end it does nothing."""
        ...

    def push(self, data: bytes) -> None:
        """The same for somebody who has said it all with this: where nothing waits before it, it leaves now."""
        ...

    def close(self) -> None:
        """End the stream behind what has been written; a peer that does not read is not waited for without end."""
        ...

    def cut(self) -> None:
        """End it now, so that the peer can tell that it is not whole."""
        ...


class StreamSource(Protocol):
    """What is streamed."""

    def opened(self, sink: Sink) -> None:
        """The stream begins."""
        ...

    def room(self) -> None:
        """There is room again."""
        ...

    def closed(self) -> None:
        """It is over."""
        ...

    def goodbye(self) -> None:
        """The server is shutting down."""
        ...


class StreamAnswer(Struct, frozen=True):
    """A reply whose body has no length: chunks on HTTP/1.1, DATA frames on HTTP/2. Never compressed."""

    source: StreamSource
    status: int = 200
    content_type: bytes = b"text/event-stream"
    headers: tuple[tuple[bytes, bytes], ...] = ()


class SocketSink(Protocol):
    """The way to the peer of one WebSocket."""

    @property
    def room(self) -> bool:
        """May more be sent?"""
        ...

    def send(self, text: bytes) -> None:
        """One text message, UTF-8. After the end it does nothing."""
        ...

    def listen(self, wanted: bool) -> None:
        """Hear the peer, or let it wait: who has more to do than it wants to keep stops listening for a while."""
        ...

    def close(self, code: int = 1000) -> None:
        """End behind what has been sent."""
        ...


class SocketSource(Protocol):
    """What speaks on a WebSocket. As a stream's source, and it hears, too."""

    def opened(self, sink: SocketSink) -> None:
        """The handshake is through."""
        ...

    def received(self, message: str | bytes) -> None:
        """A whole message: text, or bytes if it was binary."""
        ...

    def room(self) -> None:
        """There is room again."""
        ...

    def closed(self) -> None:
        """It is over."""
        ...

    def goodbye(self) -> None:
        """The server is shutting down."""
        ...


class Upgrade(Struct, frozen=True):
    """Go on as a WebSocket. A request that is no handshake gets a `400`, and the source hears `closed` only."""

    source: SocketSource


class Promise(Pending[Reply], eq=False):
    """A reply that will come, or an envelope: nobody has to look after it."""


Answer = Reply | StreamAnswer | Upgrade | Pending[Reply]


class ReplySlot(Struct, eq=False):
    """Where a reply belongs in the order."""

    request: Request | None
    keep_alive: bool = True
    old: bool = False
    """Is this a client of HTTP/1.0?"""
    coded: bool = False
    """Is the body to be unpacked?"""
    answer: Reply | StreamAnswer | Upgrade | bytes | None = None
    """Bytes are an answer that is written as it is."""

    @property
    def with_body(self) -> bool:
        """HEAD wants none."""
        return self.request is None or self.request.method != "HEAD"

    @property
    def request_id(self) -> bytes:
        """The id that the answer has; a request by the short way does not name itself."""
        return fresh() if self.request is None else id_of(self.request)


class Replies(Protocol):
    """The replies of one connection."""

    def expect(self) -> ReplySlot:
        """Take the next place, for a reply that comes in a later turn of the loop."""
        ...

    def tell(self, slot: ReplySlot, body: bytes) -> None:
        """A `200` with this JSON is the reply."""
        ...

    def settle(self, slot: ReplySlot, reply: Reply) -> None:
        """This is the reply. With a request in its slot the log hears of it."""
        ...


Shortcut = Callable[[bytes, Replies], bool]
"""Takes up a request, given its body, and expects a reply; or does nothing, and says so with False."""
