"""A stream over HTTP/1: its sink encodes writes as chunks, or sends them unframed to a client of HTTP/1.0.

The source's `closed` is called once, no matter which side ended the stream. If a source raises, its connection is
aborted, because the rest of the stream is unknown.
"""

import asyncio
import logging
from collections.abc import Callable

from driftq.http.answer import StreamAnswer, StreamSource
from driftq.http.reply import STATUS_LINES
from driftq.http.transport.outbox import Outbox
from driftq.system.runtime import Runtime

_log = logging.getLogger(__name__)

_LAST_CHUNK = b"0\r\n\r\n"


def stream_head(stream: StreamAnswer, *, request_id: bytes, keep_alive: bool, chunked: bool) -> bytes:
    """Return the response head of a stream."""
    parts = [STATUS_LINES[stream.status], b"content-type: %b\r\n" % stream.content_type]
    parts.append(b"x-request-id: %b\r\n" % request_id)
    parts += [b"%b: %b\r\n" % header for header in stream.headers]
    parts.append(b"connection: keep-alive\r\n" if keep_alive else b"connection: close\r\n")
    parts.append(b"transfer-encoding: chunked\r\n\r\n" if chunked else b"\r\n")
    return b"".join(parts)


class ChunkSink:
    """The sink of one open stream."""

    def __init__(
        self,
        source: StreamSource,
        transport: asyncio.Transport,
        runtime: Runtime,
        *,
        chunked: bool,
        on_end: Callable[[], None],
    ) -> None:
        self._source = source
        self._transport = transport
        self._runtime = runtime
        self._chunked = chunked
        self._on_end = on_end
        self._ended = False
        self._told = False
        self._outbox = Outbox(transport, runtime, lambda: self._call(source.room))

    # Called by the source

    @property
    def room(self) -> bool:
        """Whether the stream is open and its outbox accepts data."""
        return not self._ended and self._outbox.room

    @property
    def unsent(self) -> int:
        """Return the number of bytes that the peer has not read yet."""
        return self._outbox.unsent

    def write(self, data: bytes) -> None:
        """Queue bytes as one chunk; they leave at the end of this loop turn."""
        if data and not self._ended:
            self._outbox.put(*self._framed(data))

    def push(self, data: bytes) -> None:
        """Send bytes as one chunk now, if nothing is queued before it."""
        if data and not self._ended:
            self._outbox.push(*self._framed(data))

    def close(self) -> None:
        """Send the last chunk in this loop turn; the source's `closed` is called in the next."""
        if self._ended:
            return
        self._ended = True
        if self._chunked:
            self._outbox.put(_LAST_CHUNK)
        self._runtime.soon(self._finish)

    def cut(self) -> None:
        """Abort the connection; the source's `closed` is called as for a lost peer."""
        if not self._ended:
            self._abort()

    # Called by the connection

    def open(self, head: bytes) -> None:
        """Send the head and the first data of the source."""
        self._outbox.put(head)
        self._call(lambda: self._source.opened(self))
        self._outbox.flush()

    def pause(self) -> None:
        """Report no room until `resume`, because the peer does not read."""
        self._outbox.pause()

    def resume(self) -> None:
        """Report room again, because the peer reads again."""
        self._outbox.resume()

    def goodbye(self) -> None:
        """Let the source close the stream, because the server shuts down."""
        if not self._ended:
            self._call(self._source.goodbye)

    def lose(self) -> None:
        """End the stream, because the peer is gone."""
        self._ended = True
        self._outbox.drop()
        self._tell_closed()

    # Internals

    def _framed(self, data: bytes) -> tuple[bytes, ...]:
        return (b"%x\r\n" % len(data), data, b"\r\n") if self._chunked else (data,)

    def _finish(self) -> None:
        if self._told:
            return
        self._outbox.flush()
        self._outbox.drop()
        self._tell_closed()
        self._on_end()

    def _tell_closed(self) -> None:
        if not self._told:
            self._told = True
            tell_closed(self._source.closed)

    def _call(self, step: Callable[[], None]) -> None:
        if self._ended:
            return
        try:
            step()
        except Exception:  # noqa: BLE001  # a bug in one source ends one connection, not the server
            _log.exception("a stream failed")
            self._abort()

    def _abort(self) -> None:
        self._ended = True
        self._outbox.drop()
        self._transport.abort()


def tell_closed(closed: Callable[[], None]) -> None:
    """Call a source's `closed`, and log an exception that it raises."""
    try:
        closed()
    except Exception:  # noqa: BLE001  # a bug in one source ends one stream, not the server
        _log.exception("a stream failed at its end")
