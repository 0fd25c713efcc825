"""Plans: descriptions of calls that perform no I/O themselves.

A plan is a generator. It yields an `Action`, receives the result of the action, and returns its typed answer. A driver
performs the actions, blocking or on an asyncio loop (`client/transport/drivers`). If no answer comes, the driver throws
a `TransportError` into the plan. A flow is a plan that produces items: it yields them as `Emit` or `EmitAll` between
its actions, and may have no end.

Plans use no sockets, threads, loops or clocks. So both clients behave the same, and a test can play the server.
"""

from collections.abc import Generator, Iterable, Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.json import decode

from driftq.system.http_client.request_body import Body

T = TypeVar("T")


class Request(Struct, frozen=True):
    """Send a request and wait for the answer. The result is a `Response`, whatever its status."""

    method: str
    path: str
    """The path, with special characters percent-encoded."""
    query: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    content: bytes | Body | None = None
    wait_s: float = 0.0
    """How long the server may hold its answer back because the call asks it to; added to the timeout of the client."""
    again: bool = False
    """Whether this is a retry: it gets only the time that is left of the call."""
    takes_view: bool = False
    """Whether a large content of the answer may be a `memoryview` instead of a copy in `bytes`."""


class Response(Struct, frozen=True):
    """A complete answer. The names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    def json(self) -> Any:
        """Return the content, decoded from JSON."""
        return decode(self.content)


class Pause(Struct, frozen=True):
    """Wait for some seconds. With `in_call`, the result is False, at once, if the call has less time left."""

    seconds: float
    in_call: bool = False
    """Whether the pause belongs to the call of the last request and uses up its time."""


class Open(Struct, frozen=True):
    """Open a stream. The result is a `Response`; after a success it has no content yet, `Pull` reads it."""

    request: Request
    silence_s: float
    """After this many seconds without bytes from the server, the connection counts as broken."""


class Pull(Struct, frozen=True):
    """Read from the open stream. The result is the next bytes, or b"" at its end."""


class Shut(Struct, frozen=True):
    """Close the stream, if one is open."""


class Emit(Struct, Generic[T], frozen=True):
    """Hand one item to the caller of a flow."""

    item: T


class EmitAll(Struct, Generic[T], frozen=True):
    """Hand many items to the caller of a flow, one after the other, without resuming the flow for each."""

    items: Iterable[T]


Action = Request | Pause | Open | Pull | Shut
Plan = Generator[Action, Any, T]
Flow = Generator[Action | Emit[T] | EmitAll[T], Any, None]


def pulled() -> Plan[bytes]:
    """Return the next bytes of the open stream, b"" at its end."""
    chunk: bytes = yield Pull()
    return chunk
