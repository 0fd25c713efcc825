"""Streams that survive a broken connection: the client reopens them, with growing pauses, and continues.

Until a stream has been open once, it fails as a call does, because there may be no server at this address.
"""

import logging
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol, TypeVar

from msgspec import MsgspecError

from driftq.client.errors import ClientError, ProtocolError, api_error
from driftq.client.transport.calls import Calls
from driftq.client.transport.plan import Emit, Flow, Open, Plan, Response, Shut, pulled
from driftq.client.transport.retry import Repeat, may_retry

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

FRAME_BYTES_MAX = 64 << 20
"""Limit of one event or line of a stream. The server sends frames of about 1 MiB, or of one record."""

_log = logging.getLogger(__name__)


class StreamLine(Protocol[T_co]):
    """One kind of stream: how to open it, how to read its bytes, and its position."""

    def is_over(self) -> bool:
        """Whether the stream is finished and nothing more can arrive."""
        ...

    def opening(self) -> Plan[Open]:
        """Return the request that continues the stream at its position."""
        ...

    def reopens(self) -> bool:
        """Whether the stream is opened again after its connection has ended."""
        ...

    def is_stale(self, response: Response) -> bool:
        """Whether the server no longer knows the session, so that `opening` must start a new one."""
        ...

    def heard(self, chunk: bytes) -> Iterable[T_co]:
        """Yield the items of the next bytes. It is called first with b"" when the stream is open."""
        ...


class Rejoining:
    """Base of streams that are always opened with the same request, because the server keeps their position."""

    def __init__(self, opening: Open) -> None:
        self._opening = opening

    def is_over(self) -> bool:
        """Return False: the stream has no end."""
        return False

    def opening(self) -> Plan[Open]:
        """Return the same request each time."""
        yield from ()
        return self._opening

    def reopens(self) -> bool:
        """Return True: a stream that has ended is always opened again."""
        return True

    def is_stale(self, _: Response) -> bool:
        """Return False: there is no session to lose."""
        return False


def kept_open(calls: Calls, line: StreamLine[T]) -> Flow[T]:
    """Yield all items of a stream until it is over, and reopen it when it breaks. Raise ClientError."""
    failures, was_open = 0, False
    while not line.is_over() and line.reopens():
        lost: ClientError | None = None
        try:
            response: Response = yield (yield from line.opening())
            if line.is_stale(response):
                continue
            if response.status >= 300:
                raise api_error(response.status, response.headers, response.content)
            failures, was_open = 0, True
            yield from _items_of(line)
        except ClientError as error:
            if not may_retry(error, Repeat.SAME) or not (was_open or failures < calls.retries.count):
                raise
            lost = error
        yield Shut()
        if not line.is_over() and line.reopens():
            _log.info("the stream has ended and is reopened: %s", lost or "the server closed it")
            yield calls.pause(failures, lost)
            failures += 1


def _items_of(line: StreamLine[T]) -> Flow[T]:
    """Yield the items that arrive before the open stream ends."""
    chunk = b""
    while True:
        try:
            for item in line.heard(chunk):
                yield Emit(item)
        except (MsgspecError, UnicodeDecodeError) as error:
            raise ProtocolError(f"the stream is not from a DriftQ server: {error}; is the address right?") from error
        if line.is_over():
            return
        chunk = yield from pulled()
        if not chunk:
            return


class ServerSentEvent(NamedTuple):
    """One frame with data; comments and frames with only `retry` are not events."""

    id: str | None
    event: str
    data: bytes


class FrameSplitter:
    """Splits incoming bytes at a separator, and keeps the incomplete frame at their end."""

    def __init__(self, separator: bytes) -> None:
        self._separator = separator
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the frames that are complete now. Raise ProtocolError if the incomplete one is too long."""
        if self._rest:
            searched = max(0, len(self._rest) - len(self._separator) + 1)
            self._rest += chunk
            if self._rest.find(self._separator, searched) < 0:
                self._check()
                return []
            chunk = bytes(self._rest)
        *frames, rest = chunk.split(self._separator)
        self._rest = bytearray(rest)
        self._check()
        return frames

    def _check(self) -> None:
        if len(self._rest) > FRAME_BYTES_MAX:
            raise ProtocolError(
                f"a frame of the stream is longer than {FRAME_BYTES_MAX} bytes; is it from a DriftQ server?"
            )


class EventReader:
    """Splits incoming bytes into server-sent events."""

    def __init__(self) -> None:
        self._splitter = FrameSplitter(b"\n\n")

    def feed(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        """Yield the events of the complete frames; keep the rest for the next call."""
        for frame in self._splitter.feed(chunk):
            fields: dict[bytes, bytes] = {}
            for line in frame.split(b"\n"):
                name, _, value = line.partition(b": ")
                fields[name] = value
            if b"data" in fields:
                number = fields.get(b"id")
                yield ServerSentEvent(
                    None if number is None else number.decode(),
                    fields.get(b"event", b"message").decode(),
                    fields[b"data"],
                )
