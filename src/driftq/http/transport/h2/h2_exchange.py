"""One request and its answer on an HTTP/2 connection: a stream in HTTP/2's words, and the sink of one in ours.

Invariants
- What waits for the peer's window, or for its socket, is bounded: a source is told that there is no room above
  `HIGH_WATER` bytes; a reply waits as the pieces it came in.
- A source hears `closed` once, whoever ended it.
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


class Way(Protocol):
    """The way out, as an exchange sees it."""

    @property
    def full(self) -> bool:
        """Does the peer not read?"""
        ...

    @property
    def unsent(self) -> int:
        """Bytes of any exchange that the peer has not taken."""
        ...

    def post(self, exchange: "Exchange") -> None:
        """Have what it has sent at the end of the turn."""
        ...


class Owner(Protocol):
    """The connection, as an exchange sees it."""

    def cut(self, exchange: "Exchange") -> None:
        """End it without its end."""
        ...

    def part(self, exchange: "Exchange") -> None:
        """The source has closed: its end may take a while to be sent, but not for ever."""
        ...


class Exchange:
    """From the head of a request to the end of its answer."""

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

    def __init__(self, owner: Owner, way: Way, number: int, method: bytes, target: bytes, headers: Headers) -> None:
        self._owner = owner
        self._way = way
        self.number = number
        self.method = method
        self.target = target
        self.headers = headers
        self.body: list[bytes] = []
        self.body_bytes = 0
        self.heard = False
        """Is the request complete, or its rest of no interest?"""
        self.ended = False
        """Has the peer sent the end of it?"""
        self.looks = 0
        """How often its body was looked at and had not got on."""
        self.request: Request | None = None
        self.answered = False
        """Is the head of the answer sent?"""
        self.source: StreamSource | None = None
        self._parts: deque[memoryview] = deque()
        self._size = 0
        self.ending = False
        """Does nothing come behind what waits?"""
        self.over = False
        self.tight = False
        """There was no room, and the source has not been told that there is again."""

    # For the source

    @property
    def room(self) -> bool:
        """May more be written?"""
        return self._size < HIGH_WATER and not self.ending and not self.over and not self._way.full

    @property
    def unsent(self) -> int:
        """What the peer has not taken."""
        return 0 if self.over else self._size + self._way.unsent

    def write(self, data: bytes) -> None:
        """Bytes of a stream."""
        if data and not self.ending and not self.over:
            self.put(data)
            self.tight |= self._size >= HIGH_WATER
            self._way.post(self)

    def push(self, data: bytes) -> None:
        """The same: the frames of one turn leave together, for they share windows."""
        self.write(data)

    def close(self) -> None:
        """The end, behind what waits."""
        if not self.ending and not self.over:
            self.ending = True
            self._way.post(self)
            self._owner.part(self)

    def cut(self) -> None:
        """The end, now."""
        if not self.over:
            self._owner.cut(self)

    # For the connection

    def put(self, data: bytes) -> None:
        """Bytes that wait to be sent."""
        self._parts.append(memoryview(data))
        self._size += len(data)

    def take(self, most: int) -> memoryview:
        """Bytes to send now: no more than so many, and none only if there are none."""
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
        """Does nothing wait?"""
        return not self._parts

    def open(self, source: StreamSource) -> None:
        """The source may speak."""
        self.source = source
        self._call(lambda: source.opened(self))

    def tell_room(self) -> None:
        """Tell the source if there is room again."""
        if self.tight and self.room and self.source is not None:
            self.tight = False
            self._call(self.source.room)

    def goodbye(self) -> None:
        """The server is going."""
        if self.source is not None and not self.ending:
            self._call(self.source.goodbye)
        if self.request is not None and not self.answered:
            self.request.hang_up()

    def end(self) -> None:
        """It is over, for whatever reason."""
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
        """Tell the source, once."""
        source, self.source = self.source, None
        if source is not None:
            tell_closed(source.closed)

    def _call(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:  # noqa: BLE001  # a bug in one source ends one stream, not the server
            _log.exception("a stream failed")
            self._owner.cut(self)
