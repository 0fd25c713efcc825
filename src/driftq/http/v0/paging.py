"""Pages of a list that is sorted by name (http-v0 §1.9).

A cursor is the last name of the page before, as base64 for URLs without padding: it stays good whatever comes and goes
in the list meanwhile.
"""

from base64 import b64decode, urlsafe_b64encode
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from driftq.errors import InvalidRequestError
from driftq.http.request import Request

PAGE_SIZE = 100
PAGE_SIZE_MAX = 1000


class Paging(NamedTuple):
    """Which part of a list is asked for."""

    prefix: str
    after: str
    """The last name that was shown; empty at the start."""
    size: int

    @classmethod
    def of(cls, request: Request) -> "Paging":
        """As the query says. Raises InvalidRequestError for a cursor that is none."""
        if not request.query:
            return cls("", "", PAGE_SIZE)
        size = min(max(request.number("page_size", PAGE_SIZE), 1), PAGE_SIZE_MAX)
        return cls(request.argument("prefix") or "", decode_cursor(request.argument("cursor") or ""), size)

    def cut(
        self, names: Sequence[str], shown: Callable[[str], bool], allowed: Sequence[str] = ()
    ) -> tuple[list[str], str | None]:
        """The names of this page, out of all in order, and the cursor of the next if there is more.

        `allowed` are beginnings of names, none meaning any: the cost follows what they let through.
        """
        page: list[str] = []
        for name in self._candidates(names, allowed):
            if shown(name):
                if len(page) == self.size:
                    return page, encode_cursor(page[-1])
                page.append(name)
        return page, None

    def _candidates(self, names: Sequence[str], allowed: Sequence[str]) -> Iterator[str]:
        place = bisect_right(names, self.after)
        for beginning in sorted(allowed) or [""]:
            if not (beginning.startswith(self.prefix) or self.prefix.startswith(beginning)):
                continue
            wanted = max(beginning, self.prefix, key=len)
            place = max(place, bisect_left(names, wanted))
            while place < len(names) and names[place].startswith(wanted):
                yield names[place]
                place += 1


def encode_cursor(name: str) -> str:
    """A name as a cursor."""
    return urlsafe_b64encode(name.encode()).rstrip(b"=").decode()


def decode_cursor(cursor: str) -> str:
    """The name in a cursor, of either alphabet of base64, padded or not. Raises InvalidRequestError."""
    try:
        plain = cursor.rstrip("=").replace("-", "+").replace("_", "/").encode("ascii")
        return b64decode(plain + b"=" * (-len(plain) % 4), validate=True).decode()
    except ValueError:
        raise InvalidRequestError("cursor is none that this list gave out") from None
