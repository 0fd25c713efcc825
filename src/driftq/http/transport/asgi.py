"""The app as an ASGI 3 application, for embedding in another server and for tests in one process.

The ASGI server does the parsing, the timeouts and the connections. This module does the rest: body limits, gzip,
streams with bounded buffers, the order of a WebSocket's messages. Streams and WebSockets end with the lifespan.

Invariants of a stream or WebSocket
- Bytes that the ASGI server has not accepted are limited: from `HIGH_WATER` bytes a source gets no room.
- A source's `closed` is called once: after its close, after an error, or when the peer is gone.
- A peer has `LINGER_MS` to read the end. If it does not, or if the source has failed or cut its stream, the ASGI call
  raises `StreamCutError`: ASGI has no event for an incomplete answer, and servers drop the connection after an error.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from contextlib import suppress
from typing import Any

from driftq.http.answer import SocketSource, StreamAnswer, StreamSource, Upgrade
from driftq.http.reply import Reply
from driftq.http.request import Headers, Request
from driftq.http.request_id import NAME, id_of
from driftq.http.transport.chunk_stream import tell_closed
from driftq.http.transport.connection_context import Serving
from driftq.http.transport.h1.reply_order import LINGER_MS
from driftq.http.transport.outbox import HIGH_WATER
from driftq.http.transport.request_flow import ask
from driftq.http.v0.errors import refusal
from driftq.system.runtime import Runtime, Timer

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

_POLICY = 1008
"""The close code for a refused WebSocket, if the ASGI server cannot send an HTTP reply instead."""

_log = logging.getLogger(__name__)


class StreamCutError(Exception):
    """Ends the ASGI call of an incomplete stream or WebSocket, so that the ASGI server drops the connection."""


class Asgi:
    """The ASGI application of one server."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope: a request, a WebSocket or the lifespan."""
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            event = await receive()
            if event["type"] == "lifespan.shutdown":
                self._serving.peers.finish()
                await self._serving.peers.wait_empty()
                self._serving.packing.close()
            await send({"type": f"{event['type']}.complete"})
            if event["type"] == "lifespan.shutdown":
                return

    async def _http(self, scope: Event, receive: Receive, send: Send) -> None:
        request = await self._request(scope, receive)
        if request is None:
            return
        gone = asyncio.ensure_future(_disconnected(receive))
        gone.add_done_callback(lambda _: request.hang_up())
        try:
            answer = await self._answer(request)
            if isinstance(answer, Upgrade):
                tell_closed(answer.source.closed)
                answer = refusal(
                    "invalid_request", "this path is a WebSocket, and the request is not a WebSocket handshake"
                )
            if isinstance(answer, Reply):
                await _send_reply(send, request, answer)
            elif request.method == "HEAD":
                tell_closed(answer.source.closed)
                await _send_reply(send, request, Reply(answer.status, b"", answer.content_type, answer.headers))
            else:
                await self._stream(request, answer, gone, send)
        finally:
            gone.cancel()

    async def _request(self, scope: Event, receive: Receive) -> Request | None:
        """Return the whole request, or None if the caller disconnected before its end."""
        parts: list[bytes] = []
        size, more = 0, True
        while more and size <= self._serving.terms.body_bytes_max:
            event = await receive()
            if event["type"] == "http.disconnect":
                return None
            parts.append(event.get("body", b""))
            size += len(parts[-1])
            more = event.get("more_body", False)
        oversized = size > self._serving.terms.body_bytes_max
        return _request_of(scope, scope["method"], b"" if oversized else b"".join(parts), oversized=oversized)

    async def _answer(self, request: Request) -> Reply | StreamAnswer | Upgrade:
        found: asyncio.Future[Reply | StreamAnswer | Upgrade] = asyncio.get_running_loop().create_future()

        def give(answer: Reply | StreamAnswer | Upgrade) -> None:
            if not found.done():
                found.set_result(answer)
            elif not isinstance(answer, Reply):
                tell_closed(answer.source.closed)

        ask(self._serving, request, give)
        return await found

    async def _stream(self, request: Request, stream: StreamAnswer, gone: "asyncio.Future[None]", send: Send) -> None:
        headers = [(b"content-type", stream.content_type), (NAME, id_of(request)), *stream.headers]
        await send({"type": "http.response.start", "status": stream.status, "headers": headers})
        pipe = _Pipe(stream.source, self._serving.runtime)
        gone.add_done_callback(lambda _: pipe.lose())
        await self._deliver(pipe, lambda: stream.source.opened(pipe), _send_stream(pipe, send))

    async def _deliver(self, pipe: "_Pipe", opened: Callable[[], None], sending: Coroutine[Any, Any, None]) -> None:
        """Open a source and send what it writes until its end. Raise StreamCutError if the end was not sent."""
        task = asyncio.ensure_future(sending)
        pipe.on_stop = task.cancel
        self._serving.peers.add(pipe)
        try:
            pipe.call(opened)
            await asyncio.wait({task})
        finally:
            task.cancel()
            pipe.lose()
            self._serving.peers.discard(pipe)
        if pipe.incomplete:
            raise StreamCutError("the stream or WebSocket ended before its end was sent")
        if not task.cancelled():
            task.result()

    async def _websocket(self, scope: Event, receive: Receive, send: Send) -> None:
        await receive()
        request = _request_of(scope, "GET", b"", oversized=False)
        answer = await self._answer(request)
        if isinstance(answer, Upgrade):
            await self._converse(request, answer, receive, send)
            return
        if isinstance(answer, StreamAnswer):
            tell_closed(answer.source.closed)
            answer = refusal("invalid_request", "this path is not a WebSocket")
        if "websocket.http.response" in scope.get("extensions", {}):
            await _send_reply(send, request, answer, kind="websocket.http.response")
        else:
            await send({"type": "websocket.close", "code": _POLICY, "reason": answer.body[:100].decode()})

    async def _converse(self, request: Request, upgrade: Upgrade, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept", "headers": [(NAME, id_of(request))]})
        pipe = _SocketPipe(upgrade.source, self._serving.runtime)
        hearing = asyncio.ensure_future(pipe.hear(receive))
        try:
            await self._deliver(pipe, lambda: upgrade.source.opened(pipe), _send_messages(pipe, send))
        finally:
            hearing.cancel()


class _Pipe:
    """A sink whose bytes a coroutine sends to the ASGI server."""

    def __init__(self, source: StreamSource | SocketSource, runtime: Runtime) -> None:
        self._source = source
        self._runtime = runtime
        self._parts: list[bytes] = []
        self._size = 0
        self._sending = 0
        self._tight = False
        self._ended = False
        self._told = False
        self._leaving: Timer | None = None
        self._news = asyncio.Event()
        self.stopped = False
        """Whether nothing more may be sent, not even the end."""
        self.incomplete = False
        """Whether the stream was ended before the peer had all of it, by the server."""
        self.on_stop: Callable[[], object] = lambda: None
        """Stops the coroutine that sends, even while the ASGI server accepts nothing."""

    @property
    def room(self) -> bool:
        """Whether less than `HIGH_WATER` bytes wait and the stream has not ended."""
        return not self._ended and self.unsent < HIGH_WATER

    @property
    def unsent(self) -> int:
        """Return the number of bytes that the ASGI server has not accepted yet."""
        return self._size + self._sending

    def write(self, data: bytes) -> None:
        """Queue bytes for the peer; does nothing after the end."""
        if data:
            self._put(data)

    def push(self, data: bytes) -> None:
        """Queue bytes like `write`: the ASGI server decides when they leave."""
        self.write(data)

    def close(self) -> None:
        """End the stream after the queued bytes, at the latest after `LINGER_MS`."""
        if not self._ended:
            self._ended = True
            self._news.set()
            self._runtime.soon(self._tell_closed)
            self._leaving = self._runtime.later(LINGER_MS, self._give_up)

    def cut(self) -> None:
        """End the stream now, before its end."""
        if not self._ended:
            self._give_up()
            self._runtime.soon(self._tell_closed)

    def lose(self) -> None:
        """Release everything, because the peer is gone or has everything."""
        self._stop()
        if self._leaving is not None:
            self._leaving.cancel()
        self._tell_closed()

    def finish(self) -> None:
        """Let the source close the stream, because the server shuts down."""
        self.call(self._source.goodbye)

    def abort(self) -> None:
        """End the stream now, before its end."""
        self._give_up()

    async def taken(self) -> list[bytes] | None:
        """Wait for queued bytes and return them; None at the end of the stream."""
        while not self._parts:
            if self._ended:
                return None
            self._news.clear()
            await self._news.wait()
        parts, self._parts = self._parts, []
        self._sending, self._size = self._size, 0
        return parts

    def sent(self) -> None:
        """Note that the bytes taken last were sent; calls the source's `room` if it waits for that."""
        self._sending = 0
        if self._tight and self.room:
            self._tight = False
            self.call(self._source.room)

    def call(self, step: Callable[[], None]) -> None:
        """Call a method of the source, unless the stream has ended; an exception cuts this stream only."""
        if self._ended:
            return
        try:
            step()
        except Exception:  # noqa: BLE001  # a bug in one source ends one stream, not the server
            _log.exception("a stream failed")
            self._give_up()
            self._runtime.soon(self._tell_closed)

    def _put(self, data: bytes) -> None:
        if not self._ended:
            self._parts.append(data)
            self._size += len(data)
            self._tight |= self.unsent >= HIGH_WATER
            self._news.set()

    def _give_up(self) -> None:
        self.incomplete = True
        self._stop()

    def _stop(self) -> None:
        self._ended = self.stopped = True
        self._parts = []
        self._size = self._sending = 0
        self.on_stop()

    def _tell_closed(self) -> None:
        if not self._told:
            self._told = True
            tell_closed(self._source.closed)


class _SocketPipe(_Pipe):
    """A sink for the messages of a WebSocket, which also receives messages."""

    def __init__(self, source: SocketSource, runtime: Runtime) -> None:
        super().__init__(source, runtime)
        self._socket = source
        self._listening = asyncio.Event()
        self._listening.set()
        self.code = 1000

    def send(self, text: bytes) -> None:
        """Queue one text message for the peer."""
        self._put(text)

    def listen(self, wanted: bool) -> None:
        """Start or stop receiving messages from the peer."""
        if wanted:
            self._listening.set()
        else:
            self._listening.clear()

    def close(self, code: int = 1000) -> None:
        """Close the WebSocket with this code after the queued messages."""
        if not self._ended:
            self.code = code
        super().close()

    async def hear(self, receive: Receive) -> None:
        """Pass messages to the source until the peer disconnects."""
        while True:
            await self._listening.wait()
            event = await receive()
            if event["type"] != "websocket.receive":
                self.lose()
                return
            text = event.get("text")
            message: str | bytes = text if text is not None else event.get("bytes") or b""
            self.call(lambda message=message: self._socket.received(message))  # type: ignore[misc]


def _request_of(scope: Event, method: str, body: bytes, *, oversized: bool) -> Request:
    target = scope.get("raw_path") or scope["path"].encode()
    if scope.get("query_string"):
        target += b"?" + scope["query_string"]
    headers: Headers = [(bytes(name).lower(), bytes(value)) for name, value in scope["headers"]]
    return Request.of(method.encode(), target, headers, body, oversized=oversized)


async def _send_stream(pipe: _Pipe, send: Send) -> None:
    while (parts := await pipe.taken()) is not None:
        await send({"type": "http.response.body", "body": b"".join(parts), "more_body": True})
        pipe.sent()
    if not pipe.stopped:
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_messages(pipe: _SocketPipe, send: Send) -> None:
    while (parts := await pipe.taken()) is not None:
        for part in parts:
            await send({"type": "websocket.send", "text": part.decode()})
        pipe.sent()
    if not pipe.stopped:
        await send({"type": "websocket.close", "code": pipe.code})


async def _disconnected(receive: Receive) -> None:
    with suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            pass


async def _send_reply(send: Send, request: Request, reply: Reply, *, kind: str = "http.response") -> None:
    with_body = request.method != "HEAD"
    headers = [(NAME, id_of(request)), *reply.headers]
    if reply.content_type:
        headers.append((b"content-type", reply.content_type))
        if reply.body or with_body:
            headers.append((b"content-length", b"%d" % reply.size))
    await send({"type": f"{kind}.start", "status": reply.status, "headers": headers})
    await send({"type": f"{kind}.body", "body": reply.whole if with_body else b""})
