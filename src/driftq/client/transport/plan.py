"""Plans: what a client does, without doing it.

An operation is a generator. It yields an `Action`, gets what came of it, and returns its typed answer; a driver
performs the actions, blocking or not (`client/transport/drivers`). An action that finds no answer is thrown back in as
a `TransportError`. A flow is a plan for something without an end: it hands items out as `Emit` or `EmitAll` on its way.

No plan knows of sockets, threads, loops or clocks. So both clients do the same, and a test can play the server.
"""

from collections.abc import Generator, Iterable, Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.json import decode

from driftq.system.http_client.request_body import Body

T = TypeVar("T")


class Request(Struct, frozen=True):
    """One exchange. Performed it gives a `Response`, whatever its status."""

    method: str
    path: str
    """Percent-encoded where it needs to be."""
    query: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    content: bytes | Body | None = None
    wait_s: float = 0.0
    """How long the server is asked to hold its answer back, beyond the client's own timeout."""
    again: bool = False
    """Whether this is another try of the same call: it gets what is left of the call's time."""
    takes_view: bool = False
    """Whether the content of the answer, if it is large, may be a `memoryview` of it in place of a copy in `bytes`."""


class Response(Struct, frozen=True):
    """A whole answer. The names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    def json(self) -> Any:
        """The content, decoded."""
        return decode(self.content)


class Pause(Struct, frozen=True):
    """Wait. Gives False, at once, if that is longer than the call it belongs to has time."""

    seconds: float
    in_call: bool = False
    """Whether it counts for the time of the call whose request came before."""


class Open(Struct, frozen=True):
    """Begin a stream. Gives a `Response`: without content if it is a success, for that is still to come."""

    request: Request
    silence_s: float
    """A server that says nothing for so long is taken for gone."""


class Pull(Struct, frozen=True):
    """What comes next on the open stream: some bytes, or none at its end."""


class Shut(Struct, frozen=True):
    """Let go of the stream, if one is open."""


class Emit(Struct, Generic[T], frozen=True):
    """An item for whoever iterates."""

    item: T


class EmitAll(Struct, Generic[T], frozen=True):
    """Many items for whoever iterates, who gets one after the other without a turn of the flow for each."""

    items: Iterable[T]


Action = Request | Pause | Open | Pull | Shut
Plan = Generator[Action, Any, T]
Flow = Generator[Action | Emit[T] | EmitAll[T], Any, None]


def pulled() -> Plan[bytes]:
    """The next bytes of the open stream."""
    chunk: bytes = yield Pull()
    return chunk
