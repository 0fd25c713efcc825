"""The app as an ASGI 3 application, for embedding in another server and for tests in one process.

The ASGI server does the parsing, the timeouts and the connections. This module does the rest: body limits, gzip,
streams with bounded buffers, the order of a WebSocket's messages. Streams and WebSockets end with the lifespan.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from driftq.http.answer import SocketSource, StreamAnswer, StreamSource, Upgrade
from driftq.http.reply import Reply
from driftq.http.request import Headers, Request
from driftq.http.request_id import NAME, id_of
from driftq.http.transport.chunk_stream import tell_closed
from driftq.http.transport.connection_context import Serving
from driftq.http.transport.outbox import HIGH_WATER
from driftq.http.transport.request_flow import ask
from driftq.http.v0.errors import refusal

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

_POLICY = 1008
"""The close code for a refused WebSocket, if the ASGI server cannot send an HTTP reply instead."""

_log = logging.getLogger(__name__)


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
        pipe = _Pipe(stream.source)
        gone.add_done_callback(lambda _: pipe.lose())
        self._serving.peers.add(pipe)
        try:
            pipe.call(lambda: stream.source.opened(pipe))
            while (parts := await pipe.taken()) is not None:
                await send({"type": "http.response.body", "body": b"".join(parts), "more_body": True})
                pipe.sent()
            if not gone.done():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            pipe.lose()
            self._serving.peers.discard(pipe)
            tell_closed(stream.source.closed)

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
        pipe = _SocketPipe(upgrade.source)
        self._serving.peers.add(pipe)
        hearing = asyncio.ensure_future(pipe.hear(receive))
        try:
            pipe.call(lambda: upgrade.source.opened(pipe))
            while (parts := await pipe.taken()) is not None:
                for part in parts:
                    await send({"type": "websocket.send", "text": part.decode()})
                pipe.sent()
            if not hearing.done():
                await send({"type": "websocket.close", "code": pipe.code})
        finally:
            hearing.cancel()
            pipe.lose()
            self._serving.peers.discard(pipe)
            tell_closed(upgrade.source.closed)


class _Pipe:
    """A sink whose bytes a coroutine sends to the ASGI server."""

    def __init__(self, source: StreamSource | SocketSource) -> None:
        self._source = source
        self._parts: list[bytes] = []
        self._size = 0
        self._sending = 0
        self._tight = False
        self._ended = False
        self._news = asyncio.Event()

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
        if not self._ended:
            self._parts.append(data)
            self._size += len(data)
            self._tight |= self.unsent >= HIGH_WATER
            self._news.set()

    def push(self, data: bytes) -> None:
        """Queue bytes like `write`: the ASGI server decides when they leave."""
        self.write(data)

    def close(self) -> None:
        """End the stream after the queued bytes."""
        self._ended = True
        self._news.set()

    def lose(self) -> None:
        """End the stream now and drop the queued bytes."""
        self._parts = []
        self.close()

    def cut(self) -> None:
        """End the stream now: ASGI has no way to mark a stream as incomplete."""
        self.lose()

    def finish(self) -> None:
        """Let the source close the stream, because the server shuts down."""
        if not self._ended:
            self.call(self._source.goodbye)

    def abort(self) -> None:
        """End the stream now and drop the queued bytes."""
        self.lose()

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
        """Call a method of the source; an exception ends this stream only."""
        try:
            step()
        except Exception:  # noqa: BLE001  # a bug in one source ends one stream, not the server
            _log.exception("a stream failed")
            self.lose()


class _SocketPipe(_Pipe):
    """A sink for the messages of a WebSocket, which also receives messages."""

    def __init__(self, source: SocketSource) -> None:
        super().__init__(source)
        self._socket = source
        self._listening = asyncio.Event()
        self._listening.set()
        self.code = 1000

    def send(self, text: bytes) -> None:
        """Queue one text message for the peer."""
        self.write(text)

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
            if not self._ended:
                self.call(lambda message=message: self._socket.received(message))  # type: ignore[misc]


def _request_of(scope: Event, method: str, body: bytes, *, oversized: bool) -> Request:
    target = scope.get("raw_path") or scope["path"].encode()
    if scope.get("query_string"):
        target += b"?" + scope["query_string"]
    headers: Headers = [(bytes(name).lower(), bytes(value)) for name, value in scope["headers"]]
    return Request.of(method.encode(), target, headers, body, oversized=oversized)


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
