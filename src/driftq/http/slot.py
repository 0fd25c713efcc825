"""A reply's place in the order of a connection, and the short way to it.

Nearly all requests of a busy writer have a head that was read before (`http.heads`) and differ in their bodies alone.
What follows from the head is found out once, then, by the route (`Shortcut`): it takes bodies, and nothing is made for
a request but what its body is made into. Whatever it does not know it leaves to the long way, untouched.
"""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from driftq.http.answer import Stream, Upgrade
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.request_id import fresh, id_of


class Slot(Struct, eq=False):
    """Where a reply belongs in the order."""

    request: Request | None
    keep_alive: bool = True
    old: bool = False
    """Is this a client of HTTP/1.0?"""
    coded: bool = False
    """Is the body to be unpacked?"""
    answer: Reply | Stream | Upgrade | bytes | None = None
    """Bytes are an answer that is written as it is."""

    @property
    def with_body(self) -> bool:
        """HEAD wants none."""
        return self.request is None or self.request.method != "HEAD"

    @property
    def request_id(self) -> bytes:
        """The id that the answer has; a request by the short way does not name itself."""
        return fresh() if self.request is None else id_of(self.request)


class Replies(Protocol):
    """The replies of one connection."""

    def expect(self) -> Slot:
        """Take the next place, for a reply that comes in a later turn of the loop."""
        ...

    def tell(self, slot: Slot, body: bytes) -> None:
        """A `200` with this JSON is the reply."""
        ...

    def settle(self, slot: Slot, reply: Reply) -> None:
        """This is the reply. With a request in its slot the log hears of it."""
        ...


Shortcut = Callable[[bytes, Replies], bool]
"""Takes up a request, given its body, and expects a reply; or does nothing, and says so with False."""
