"""One request, as handlers see it."""

from urllib.parse import parse_qsl

from msgspec import Struct, structs

from driftq.http.access import FULL, Access

Headers = list[tuple[bytes, bytes]]


class Request(Struct, frozen=True):
    """A method, a target cut at its question mark, headers with names in lower case, and the whole body."""

    method: str
    path: str
    query: str = ""
    headers: Headers = []
    body: bytes = b""
    oversized: bool = False
    """Was the body longer than it may be? Then it is not here."""
    params: tuple[str, ...] = ()
    """What stood in the place of the route's colons, decoded."""
    access: Access = FULL
    began_ns: int = 0
    """When it was taken up, on the monotonic clock."""

    @classmethod
    def of(cls, method: bytes, target: bytes, headers: Headers, body: bytes, *, oversized: bool = False) -> "Request":
        """From what stood on the wire."""
        # A proxy's form of the target names the host first (RFC 9112 §3.2.2).
        if target[:7].lower() == b"http://":
            target = b"/" + target[7:].partition(b"/")[2]
        path, _, query = target.decode("latin-1").partition("?")
        return cls(method.decode("latin-1"), path, query, headers, body, oversized)

    def admitted(self, params: tuple[str, ...], access: Access, began_ns: int) -> "Request":
        """The same, as its handler gets it."""
        return structs.replace(self, params=params, access=access, began_ns=began_ns)

    def header(self, name: bytes) -> bytes | None:
        """The first header of a name, which is in lower case."""
        for found, value in self.headers:
            if found == name:
                return value
        return None

    def argument(self, name: str) -> str | None:
        """The first argument of a name in the query, form-decoded."""
        if name not in self.query:
            return None
        for found, value in parse_qsl(self.query, keep_blank_values=True, encoding="utf-8", errors="replace"):
            if found == name:
                return value
        return None

    def flag(self, name: str, default: bool) -> bool:
        """A boolean argument; what is none of the four words is the default."""
        return {"true": True, "1": True, "false": False, "0": False}.get(self.argument(name) or "", default)

    def number(self, name: str, default: int) -> int:
        """An integer argument that is not negative; what cannot be read is the default."""
        text = self.argument(name)
        return int(text) if text is not None and text.isascii() and text.isdecimal() else default
