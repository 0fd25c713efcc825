"""A stream that outlives its connection: broken, it is opened again, with longer and longer pauses, and goes on.

Until it has been open once, it fails as a call would, for then nobody knows whether there is a server at all.
"""

import logging
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol, TypeVar

from driftq.client.errors import ClientError, api_error
from driftq.client.transport.calls import Calls
from driftq.client.transport.plan import Emit, Flow, Open, Plan, Response, Shut, pulled
from driftq.client.transport.retry import Repeat, may_retry

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_log = logging.getLogger(__name__)


class StreamLine(Protocol[T_co]):
    """What is said on the stream, and where it stands."""

    def is_over(self) -> bool:
        """Is there nothing more to come?"""
        ...

    def opening(self) -> Plan[Open]:
        """How to go on from here."""
        ...

    def reopens(self) -> bool:
        """Whether a stream that has ended is opened again."""
        ...

    def is_stale(self, response: Response) -> bool:
        """Is what was opened gone, so that `opening` has to begin anew?"""
        ...

    def heard(self, chunk: bytes) -> Iterable[T_co]:
        """What the next bytes say; called with none when the stream is open."""
        ...


class Rejoining:
    """A line that is always opened the same way, because the server knows where it stands; the base of some."""

    def __init__(self, opening: Open) -> None:
        self._opening = opening

    def is_over(self) -> bool:
        """It has no end of its own."""
        return False

    def opening(self) -> Plan[Open]:
        """As it was."""
        yield from ()
        return self._opening

    def reopens(self) -> bool:
        """Whether a stream that has ended is opened again: always."""
        return True

    def is_stale(self, _: Response) -> bool:
        """There is nothing that could be."""
        return False


def kept_open(calls: Calls, line: StreamLine[T]) -> Flow[T]:
    """All that a line says, until it is over. Raises ClientError."""
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
            yield from _said(line)
        except ClientError as error:
            if not may_retry(error, Repeat.SAME) or not (was_open or failures < calls.retries.count):
                raise
            lost = error
        yield Shut()
        if not line.is_over() and line.reopens():
            _log.info("the stream has ended and is opened again: %s", lost or "the server closed it")
            yield calls.pause(failures, lost)
            failures += 1


def _said(line: StreamLine[T]) -> Flow[T]:
    """All that is said before the open stream ends."""
    chunk = b""
    while True:
        for item in line.heard(chunk):
            yield Emit(item)
        if line.is_over():
            return
        chunk = yield from pulled()
        if not chunk:
            return


class ServerSentEvent(NamedTuple):
    """One frame; a comment or a `retry` alone is none."""

    id: str | None
    event: str
    data: bytes


class EventReader:
    """Takes bytes as they come."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        """The frames that are whole."""
        *frames, self._rest = (self._rest + chunk).split(b"\n\n")
        for frame in frames:
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
