"""One request and its answer on an HTTP/2 connection. HTTP/2 calls this a stream; here it is also the sink of a source.

Invariants
- The bytes that wait for the peer's window or socket are limited: above `HIGH_WATER` bytes a source gets no room. A
  reply waits as the pieces in which it was made.
- A source's `closed` is called once, no matter which side ended the stream.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from driftq.http.answer import StreamSource
from driftq.http.request import Headers, Request
from driftq.http.transport.chunk_stream import tell_closed
from driftq.http.transport.outbox import HIGH_WATER

_log = logging.getLogger(__name__)


class ExchangeSender(Protocol):
    """The sender, as an exchange uses it."""

    @property
    def full(self) -> bool:
        """Whether the peer does not read."""
        ...

    @property
    def unsent(self) -> int:
        """Return the bytes of all exchanges that the peer has not read yet."""
        ...

    def post(self, exchange: "Exchange") -> None:
        """Send the waiting bytes of an exchange at the end of this loop turn."""
        ...


class Owner(Protocol):
    """The connection, as an exchange uses it."""

    def cut(self, exchange: "Exchange") -> None:
        """Reset the exchange before its end, and have the source's `closed` called in the next loop turn."""
        ...

    def part(self, exchange: "Exchange") -> None:
        """Let the last bytes of a closed source be sent, within a time limit."""
        ...


class Exchange:
    """One request and its answer, from the first head to the end of the answer."""

    __slots__ = (
        "_owner",
        "_parts",
        "_size",
        "_way",
        "answered",
        "body",
        "body_bytes",
        "ended",
        "ending",
        "headers",
        "heard",
        "looks",
        "method",
        "number",
        "over",
        "request",
        "source",
        "target",
        "tight",
    )

    def __init__(
        self, owner: Owner, way: ExchangeSender, number: int, method: bytes, target: bytes, headers: Headers
    ) -> None:
        self._owner = owner
        self._way = way
        self.number = number
        self.method = method
        self.target = target
        self.headers = headers
        self.body: list[bytes] = []
        self.body_bytes = 0
        self.heard = False
        """Whether the request is complete, or its remaining bytes are ignored."""
        self.ended = False
        """Whether the peer has sent the end of the request."""
        self.looks = 0
        """Number of checks since the body last made progress."""
        self.request: Request | None = None
        self.answered = False
        """Whether the head of the answer was sent."""
        self.source: StreamSource | None = None
        self._parts: deque[memoryview] = deque()
        self._size = 0
        self.ending = False
        """Whether the answer ends after the waiting bytes."""
        self.over = False
        self.tight = False
        """Whether there was no room since the source's `room` was last called."""

    # Called by the source

    @property
    def room(self) -> bool:
        """Whether less than `HIGH_WATER` bytes wait, the peer reads, and the stream is open."""
        return self._size < HIGH_WATER and not self.ending and not self.over and not self._way.full

    @property
    def unsent(self) -> int:
        """Return the bytes that the peer has not read yet, including those of other exchanges in the socket."""
        return 0 if self.over else self._size + self._way.unsent

    def write(self, data: bytes) -> None:
        """Queue bytes of a stream for the end of this loop turn."""
        if data and not self.ending and not self.over:
            self.put(data)
            self.tight |= self._size >= HIGH_WATER
            self._way.post(self)

    def push(self, data: bytes) -> None:
        """Queue bytes like `write`: the frames of one loop turn leave together, because they share windows."""
        self.write(data)

    def close(self) -> None:
        """End the stream after the waiting bytes."""
        if not self.ending and not self.over:
            self.ending = True
            self._way.post(self)
            self._owner.part(self)

    def cut(self) -> None:
        """Reset the stream now, before its end."""
        if not self.over:
            self._owner.cut(self)

    # Called by the connection

    def put(self, data: bytes) -> None:
        """Add bytes that wait to be sent."""
        self._parts.append(memoryview(data))
        self._size += len(data)

    def take(self, most: int) -> memoryview:
        """Remove and return up to `most` bytes to send; empty only if none wait."""
        if not self._parts:
            return memoryview(b"")
        part = self._parts.popleft()
        if len(part) > most:
            self._parts.appendleft(part[most:])
            part = part[:most]
        self._size -= len(part)
        return part

    @property
    def empty(self) -> bool:
        """Whether no bytes wait to be sent."""
        return not self._parts

    def open(self, source: StreamSource) -> None:
        """Start the stream of a source."""
        self.source = source
        self._call(lambda: source.opened(self))

    def tell_room(self) -> None:
        """Call the source's `room` if there was no room and there is again."""
        if self.tight and self.room and self.source is not None:
            self.tight = False
            self._call(self.source.room)

    def goodbye(self) -> None:
        """Let the source close its stream, and have a waiting request answered, because the server shuts down."""
        if self.source is not None and not self.ending:
            self._call(self.source.goodbye)
        if self.request is not None and not self.answered:
            self.request.hang_up()

    def end(self) -> None:
        """Release everything and call the source's `closed`. Further calls do nothing."""
        if self.over:
            return
        self.over = True
        self._parts.clear()
        self._size = 0
        self.body = []
        if self.request is not None and not self.answered:
            self.request.hang_up()
        self.tell_closed()

    def tell_closed(self) -> None:
        """Call the source's `closed`, once."""
        source, self.source = self.source, None
        if source is not None:
            tell_closed(source.closed)

    def _call(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:  # noqa: BLE001  # a bug in one source ends one stream, not the server
            _log.exception("a stream failed")
            self._owner.cut(self)
