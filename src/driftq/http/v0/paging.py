"""Pages of a list that is sorted by name (http-v0 §1.9).

A cursor is the last name of the previous page, as URL-safe base64 without padding. It stays valid when names are added
to the list or removed from it.
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
    """The part of a list that a request asks for."""

    prefix: str
    after: str
    """The last name of the previous page; empty for the first page."""
    size: int

    @classmethod
    def of(cls, request: Request) -> "Paging":
        """Read the paging arguments of a query. Raise InvalidRequestError if the cursor is invalid."""
        if not request.query:
            return cls("", "", PAGE_SIZE)
        size = min(max(request.number("page_size", PAGE_SIZE), 1), PAGE_SIZE_MAX)
        return cls(request.argument("prefix") or "", decode_cursor(request.argument("cursor") or ""), size)

    def cut(
        self, names: Sequence[str], shown: Callable[[str], bool], allowed: Sequence[str] = ()
    ) -> tuple[list[str], str | None]:
        """Return the names of this page and the cursor of the next page, or None if this page is the last.

        `names` is sorted. `allowed` are prefixes of names (empty: any name); the cost depends on the names that match.
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
    """Return the cursor that continues after this name."""
    return urlsafe_b64encode(name.encode()).rstrip(b"=").decode()


def decode_cursor(cursor: str) -> str:
    """Return the name in a cursor (either base64 alphabet, padded or not). Raise InvalidRequestError for other text."""
    try:
        plain = cursor.rstrip("=").replace("-", "+").replace("_", "/").encode("ascii")
        return b64decode(plain + b"=" * (-len(plain) % 4), validate=True).decode()
    except ValueError:
        raise InvalidRequestError("invalid page cursor") from None
