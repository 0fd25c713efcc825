"""One request, as handlers see it."""

from msgspec import Struct

Headers = list[tuple[bytes, bytes]]


class Request(Struct, frozen=True):
    """A method, a target cut at its question mark, headers with names in lower case, and the whole body."""

    method: str
    path: str
    query: str = ""
    headers: Headers = []
    body: bytes = b""

    @classmethod
    def of(cls, method: bytes, target: bytes, headers: Headers, body: bytes) -> "Request":
        """From what stood on the wire."""
        # A proxy's form of the target names the host first (RFC 9112 §3.2.2).
        if target[:7].lower() == b"http://":
            target = b"/" + target[7:].partition(b"/")[2]
        path, _, query = target.decode("latin-1").partition("?")
        return cls(method.decode("latin-1"), path, query, headers, body)
