"""A stream over HTTP/1: the sink that its source writes to, as chunks, or bare for a client of HTTP/1.0.

The source hears `closed` once, whoever ended the stream; a source that raises has its connection cut, for what it meant
to say cannot be known.
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
    """The bytes in front of the stream."""
    parts = [STATUS_LINES[stream.status], b"content-type: %b\r\n" % stream.content_type]
    parts.append(b"x-request-id: %b\r\n" % request_id)
    parts += [b"%b: %b\r\n" % header for header in stream.headers]
    parts.append(b"connection: keep-alive\r\n" if keep_alive else b"connection: close\r\n")
    parts.append(b"transfer-encoding: chunked\r\n\r\n" if chunked else b"\r\n")
    return b"".join(parts)


class ChunkSink:
    """One open stream."""

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

    # For the source

    @property
    def room(self) -> bool:
        """May more be written?"""
        return not self._ended and self._outbox.room

    @property
    def unsent(self) -> int:
        """What the peer has not taken."""
        return self._outbox.unsent

    def write(self, data: bytes) -> None:
        """One chunk."""
        if data and not self._ended:
            self._outbox.put(*self._framed(data))

    def push(self, data: bytes) -> None:
        """One chunk, now."""
        if data and not self._ended:
            self._outbox.push(*self._framed(data))

    def close(self) -> None:
        """The last chunk, in this turn; the source hears of it in the next."""
        if self._ended:
            return
        self._ended = True
        if self._chunked:
            self._outbox.put(_LAST_CHUNK)
        self._runtime.soon(self._finish)

    def cut(self) -> None:
        """The connection with it; the source hears of it as of a peer that is gone."""
        if not self._ended:
            self._outbox.drop()
            self._transport.abort()

    # For the connection

    def open(self, head: bytes) -> None:
        """Send the head, and what the source has at once."""
        self._outbox.put(head)
        self._call(lambda: self._source.opened(self))
        self._outbox.flush()

    def pause(self) -> None:
        """The peer does not read."""
        self._outbox.pause()

    def resume(self) -> None:
        """It does again."""
        self._outbox.resume()

    def goodbye(self) -> None:
        """The server is going."""
        if not self._ended:
            self._call(self._source.goodbye)

    def lose(self) -> None:
        """The peer is gone."""
        self._ended = True
        self._outbox.drop()
        self._tell_closed()

    # The rest

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
            self._outbox.drop()
            self._transport.abort()


def tell_closed(closed: Callable[[], None]) -> None:
    """Tell a source that it is over, whatever it makes of it."""
    try:
        closed()
    except Exception:  # noqa: BLE001  # as above
        _log.exception("a stream failed at its end")
