"""One source and one reader for every kind of sink, so that one script can drive them all.

A reader can stop reading, read again, and leave. Every connection without ASGI has a transport that buffers like a
socket: it accepts all bytes, and calls `pause_writing` and `resume_writing` at the limits that the server has set.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, cast

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from hyperframe.frame import GoAwayFrame
from wsproto.connection import CLIENT, ConnectionState
from wsproto.connection import Connection as Frames
from wsproto.events import CloseConnection, TextMessage

from driftq.http.answer import Answer, Sink, SocketSink, StreamAnswer, Upgrade
from driftq.http.request import Request
from driftq.http.transport.asgi import Asgi, Event, StreamCutError
from driftq.http.transport.connection import ServerConnection
from driftq.http.transport.connection_context import Serving, Terms
from driftq.testing import ManualClock, ManualRuntime
from tests.unit.http.transport.test_websocket import ACCEPTED, handshake
from tests.unit.http.wire import BODY_BYTES_MAX, Peer, Transport, get


class Source:
    """The source of a stream or of a WebSocket: notes every call, and writes what a test gives it while there is room.

    A name in `failing` is a method that raises. `wrong` collects calls that no sink may make: from inside a method of
    the sink, after `closed`, and `room` without room.
    """

    def __init__(self, failing: str = "") -> None:
        self.calls: list[str] = []
        self.wrong: list[str] = []
        self.failing = failing
        self.on: dict[str, Callable[[], None]] = {}
        """What the source does inside a call, by the name of the call."""
        self.written = bytearray()
        self.waiting: list[bytes] = []
        self._sink: Sink | SocketSink | None = None
        self._inside = False

    @property
    def sink(self) -> Sink | SocketSink:
        assert self._sink is not None
        return self._sink

    @property
    def stream(self) -> Sink:
        """The sink, if it is one of a stream."""
        return cast("Sink", self.sink)

    def has_room(self) -> bool:
        return self.sink.room

    def opened(self, sink: Sink | SocketSink) -> None:
        self._sink = sink
        self._note("opened")

    def room(self) -> None:
        if not self.sink.room:
            self.wrong.append("room was announced, and there is none")
        self._note("room")
        self.feed()

    def closed(self) -> None:
        self._note("closed")

    def goodbye(self) -> None:
        self._note("goodbye")
        self.write(b"bye")
        self.close()

    def received(self, message: str | bytes) -> None:
        self._note("received")

    def write(self, data: bytes, *, push: bool = False) -> None:
        """Write bytes, no matter whether there is room."""
        self.written += data
        if hasattr(self.sink, "send"):
            self._call(lambda: self.sink.send(data))  # type: ignore[union-attr]
        else:
            self._call(lambda: (self.stream.push if push else self.stream.write)(data))

    def close(self) -> None:
        self._call(self.sink.close)

    def cut(self) -> None:
        self._call(self.stream.cut)

    def feed(self, *pieces: bytes) -> None:
        """Write these pieces, and those left from before, while there is room."""
        self.waiting += pieces
        while self.waiting and self.sink.room:
            self.write(self.waiting.pop(0))

    def _call(self, step: Callable[[], None]) -> None:
        inside, self._inside = self._inside, True
        step()
        self._inside = inside

    def _note(self, name: str) -> None:
        if self._inside:
            self.wrong.append(f"{name} was called from inside a method of the sink")
        if "closed" in self.calls:
            self.wrong.append(f"{name} was called after closed")
        self.calls.append(name)
        self.on.get(name, lambda: None)()
        if name == self.failing:
            raise ZeroDivisionError("inside")


class Socket(Transport):
    """A transport with the buffer of a socket; the reader's side decides when bytes leave it."""

    def __init__(self, runtime: ManualRuntime) -> None:
        super().__init__()
        self._runtime = runtime
        self._buffer: list[bytes] = []
        self._stopped = False
        self._full = False
        self._lost = False
        self._left = False
        self.drained = False
        """Whether the reader has read all bytes up to a regular end."""

    @property
    def protocol(self) -> Any:
        return self.get_protocol()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed, "bytes after the end"
        if self._left:
            return
        self._buffer.append(bytes(data))
        self.unsent += len(data)
        self._move()
        assert self.limits is not None
        assert self.limits[0] is not None
        if not self._full and self.unsent > self.limits[0]:
            self._full = True
            self.protocol.pause_writing()

    def stop(self) -> None:
        self._stopped = True

    def go_on(self) -> None:
        self._stopped = False
        self._move()

    def close(self) -> None:
        self.closed = True
        self._move()

    def abort(self) -> None:
        self.closed = self.aborted = True
        self.lose()

    def leave(self) -> None:
        """The reader is gone: what is sent to it from now on is lost."""
        self._left = True
        self.lose()

    def lose(self) -> None:
        """The connection is gone; the protocol hears of it in a later turn, once."""
        self._buffer.clear()
        self.unsent = 0
        if not self._lost:
            self._lost = True
            self._runtime.soon(lambda: self.protocol.connection_lost(None))

    def _move(self) -> None:
        if self._stopped:
            return
        self.writes += self._buffer
        self._buffer.clear()
        self.unsent = 0
        if self._full:
            self._full = False
            self.protocol.resume_writing()
        if self.closed and not self._lost:
            self.drained = True
            self.lose()


class SocketPeer(Peer):
    """A peer whose transport buffers."""

    def another(self) -> Socket:
        transport = Socket(self.runtime)
        connection = ServerConnection(self.serving)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        return transport


class Reader(ABC):
    """The other end of one sink."""

    is_stream = True

    def __init__(self, source: Source) -> None:
        self.source = source

    serving: Serving
    got: bytes
    """The payload that has arrived."""

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether the reader saw the regular end of the stream."""

    @property
    @abstractmethod
    def broken(self) -> bool:
        """Whether the reader saw that the stream has ended too early."""

    @abstractmethod
    def turn(self) -> None:
        """Run everything that is due, on both sides."""

    @abstractmethod
    def stop(self) -> None:
        """Read nothing more."""

    @abstractmethod
    def go_on(self) -> None:
        """Read again."""

    @abstractmethod
    def leave(self) -> None:
        """Go away without a word."""

    @abstractmethod
    def advance(self, ms: int) -> None:
        """Let time pass."""

    @abstractmethod
    def end(self) -> None:
        """Release what the reader itself holds."""


class _SocketReader(Reader):
    """A reader of a connection that DriftQ itself serves."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.peer = SocketPeer(self._answer)
        assert isinstance(self.peer.transport, Socket)
        self.transport: Socket = self.peer.transport
        self.serving = self.peer.serving

    def _answer(self, _: Request) -> Answer:
        return StreamAnswer(self.source)

    def turn(self) -> None:
        self.peer.turn()

    def stop(self) -> None:
        self.transport.stop()

    def go_on(self) -> None:
        self.transport.go_on()

    def leave(self) -> None:
        self.transport.leave()

    def advance(self, ms: int) -> None:
        self.peer.runtime.advance(ms)

    def end(self) -> None:
        self.transport.abort()
        self.peer.turn()


class ChunkReader(_SocketReader):
    """Reads chunks of HTTP/1.1."""

    version = "1.1"

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.peer.send(get("/stream", version=self.version))

    @property
    def _body(self) -> bytes:
        return self.peer.received.partition(b"\r\n\r\n")[2]

    def _decoded(self) -> tuple[bytes, bool]:
        found, rest = bytearray(), self._body
        while rest:
            head, _, rest = rest.partition(b"\r\n")
            size = int(head, 16)
            if not size:
                assert rest == b"\r\n"
                return bytes(found), True
            assert rest[size : size + 2] == b"\r\n"
            found += rest[:size]
            rest = rest[size + 2 :]
        return bytes(found), False

    @property
    def got(self) -> bytes:  # type: ignore[override]
        return self._decoded()[0]

    @property
    def complete(self) -> bool:
        return self._decoded()[1]

    @property
    def broken(self) -> bool:
        return self.transport.closed and not self.complete


class BareReader(ChunkReader):
    """Reads the bare bytes of HTTP/1.0, up to the end of the connection."""

    version = "1.0"

    def _decoded(self) -> tuple[bytes, bool]:
        return self._body, self.transport.drained


class ExchangeReader(_SocketReader):
    """Reads a stream of HTTP/2; stops at the socket."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self.got = b""
        self._seen = 0
        self._ended = self._reset = False
        self._acknowledges = True
        self._unacknowledged = 0
        self.h2.initiate_connection()
        self.h2.send_headers(
            1,
            [(":method", "GET"), (":scheme", "http"), (":path", "/stream"), (":authority", "here")],
            end_stream=True,
        )
        self.turn()

    @property
    def complete(self) -> bool:
        return self._ended

    @property
    def broken(self) -> bool:
        return (self._reset or self.transport.closed) and not self._ended

    def turn(self) -> None:
        for _ in range(1000):
            data = self.h2.data_to_send()
            if data and not self.transport.closed:
                self.peer.connection.data_received(data)
            self.peer.turn()
            fresh = self._frames()
            if not fresh and not data:
                return
            for event in self.h2.receive_data(fresh):
                self._take(event)
        raise AssertionError("the two sides never come to rest")

    def _frames(self) -> bytes:
        """Return whole new frames, without GOAWAY: h2 as a client reads nothing after it."""
        found = bytearray()
        rest = self.peer.received[self._seen :]
        while len(rest) >= 9 and len(rest) >= (size := 9 + int.from_bytes(rest[:3], "big")):
            if rest[3] != GoAwayFrame.type:
                found += rest[:size]
            self._seen += size
            rest = rest[size:]
        return bytes(found)

    def advance(self, ms: int) -> None:
        super().advance(ms)
        self.turn()

    def _take(self, event: events.Event) -> None:
        if isinstance(event, events.DataReceived):
            self.got += event.data or b""
            self._unacknowledged += event.flow_controlled_length
            self._acknowledge()
        elif isinstance(event, events.StreamEnded):
            self._ended = True
        elif isinstance(event, events.StreamReset):
            self._reset = True

    def _acknowledge(self) -> None:
        if self._acknowledges and self._unacknowledged and not self._reset:
            size, self._unacknowledged = self._unacknowledged, 0
            self.h2.acknowledge_received_data(size, 1)


class WindowReader(ExchangeReader):
    """Reads a stream of HTTP/2; stops by leaving its flow control window closed."""

    def stop(self) -> None:
        self._acknowledges = False

    def go_on(self) -> None:
        self._acknowledges = True
        self._acknowledge()


class MessageReader(_SocketReader):
    """Reads the messages of a WebSocket, and answers a close frame."""

    is_stream = False

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.frames = Frames(CLIENT)
        self.got = b""
        self._seen = len(ACCEPTED)
        self._ended = False
        self.peer.send(handshake())

    def say(self, *messages: str) -> None:
        """Send messages to the server in one piece."""
        self.peer.connection.data_received(b"".join(self.frames.send(TextMessage(text)) for text in messages))

    def _answer(self, _: Request) -> Answer:
        return Upgrade(self.source)

    @property
    def complete(self) -> bool:
        return self._ended

    @property
    def broken(self) -> bool:
        return self.transport.closed and not self._ended

    def turn(self) -> None:
        self.peer.turn()
        fresh = self.peer.received[self._seen :]
        self._seen += len(fresh)
        if fresh:
            self.frames.receive_data(fresh)
        for event in self.frames.events():
            if isinstance(event, TextMessage):
                self.got += event.data.encode()
            elif isinstance(event, CloseConnection):
                self._ended = True
                if self.frames.state is ConnectionState.REMOTE_CLOSING and not self.transport.closed:
                    self.peer.send(self.frames.send(event.response()))


class AsgiReader(Reader):
    """Reads a stream from an ASGI server, whose `send` waits while the reader does not read."""

    scope: dict[str, Any] = {"type": "http", "method": "GET"}  # noqa: RUF012
    first: Event = {"type": "http.request"}  # noqa: RUF012
    last: Event = {"type": "http.disconnect"}  # noqa: RUF012

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.runtime = ManualRuntime(ManualClock())
        self.serving = Serving(self._answer, self.runtime, Terms(body_bytes_max=BODY_BYTES_MAX))
        self.sent: list[Event] = []
        self.loop = asyncio.new_event_loop()
        self.coming: asyncio.Queue[Event] = asyncio.Queue()
        self.reads = asyncio.Event()
        self.reads.set()
        scope = {"path": "/stream", "headers": [], **self.scope}
        self.coming.put_nowait(self.first)
        self.task = self.loop.create_task(Asgi(self.serving)(scope, self.coming.get, self._send))
        self.turn()

    def _answer(self, _: Request) -> Answer:
        return StreamAnswer(self.source)

    async def _send(self, event: Event) -> None:
        await self.reads.wait()
        self.sent.append(event)

    @property
    def got(self) -> bytes:  # type: ignore[override]
        bodies = [event for event in self.sent if event["type"] == "http.response.body"]
        assert all(event["body"] for event in bodies if event["more_body"]), "an empty body may look like the end"
        return b"".join(event["body"] for event in bodies)

    @property
    def complete(self) -> bool:
        return any(event.get("more_body") is False for event in self.sent)

    @property
    def broken(self) -> bool:
        return self.task.done() and isinstance(self.task.exception(), StreamCutError)

    def turn(self) -> None:
        for _ in range(5):
            self._run_tasks()
            self.runtime.run_until_idle()

    def _run_tasks(self) -> None:
        async def some() -> None:
            for _ in range(20):
                await asyncio.sleep(0)

        self.loop.run_until_complete(some())

    def stop(self) -> None:
        self.reads.clear()

    def go_on(self) -> None:
        self.reads.set()
        self._run_tasks()

    def leave(self) -> None:
        self.coming.put_nowait(self.last)

    def advance(self, ms: int) -> None:
        self.runtime.advance(ms)
        self.turn()

    def end(self) -> None:
        self.task.cancel()
        self.turn()
        self.loop.close()


class AsgiMessageReader(AsgiReader):
    """Reads the messages of a WebSocket from an ASGI server."""

    is_stream = False
    scope: dict[str, Any] = {"type": "websocket"}  # noqa: RUF012
    first: Event = {"type": "websocket.connect"}  # noqa: RUF012
    last: Event = {"type": "websocket.disconnect"}  # noqa: RUF012

    def say(self, *messages: str) -> None:
        """Send messages to the server in one piece."""
        for text in messages:
            self.coming.put_nowait({"type": "websocket.receive", "text": text})

    def _answer(self, _: Request) -> Answer:
        return Upgrade(self.source)

    @property
    def got(self) -> bytes:  # type: ignore[override]
        return b"".join(event["text"].encode() for event in self.sent if event["type"] == "websocket.send")

    @property
    def complete(self) -> bool:
        return self.sent[-1] == {"type": "websocket.close", "code": 1000}


READERS: dict[str, type[Reader]] = {
    "HTTP/1.1 chunks": ChunkReader,
    "HTTP/1.0 bytes": BareReader,
    "HTTP/2 stream, socket stops": ExchangeReader,
    "HTTP/2 stream, window stops": WindowReader,
    "WebSocket": MessageReader,
    "ASGI stream": AsgiReader,
    "ASGI WebSocket": AsgiMessageReader,
}
