"""A cache of parsed HTTP/1 request heads, so that equal bytes are not parsed again.

The meaning of a head depends only on its bytes, so an entry is valid for every peer. A head is kept only if
    - it belongs to a plain request: its body is described only by a length, it asks for no other protocol and has no
      `Expect`, and the connection stays open after it;
    - its bytes match, line by line, what the parser read, so that it ends at its first empty line;
    - it has no `x-request-id`: those values differ, and their heads would push out all others;
    - it contains no secret except an API key. Neither the key nor the bytes around it are kept, because a key must not
      stay in memory longer than its request. Digests of both are kept, as for the server's own keys.
"""

from collections.abc import Callable
from hashlib import sha256

from msgspec import Struct

from driftq.http.answer import Shortcut
from driftq.http.keys import digest_of, key_in
from driftq.http.request import Headers, Request
from driftq.http.request_id import NAME

HEAD_KEPT_MAX = 1024
"""The longest head that is kept, in bytes."""
HEADS_KEPT_MAX = 1024
_KEY = b"authorization"

_METHODS = frozenset(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"])
_NEVER_KEPT = frozenset(
    [
        b"content-encoding",
        b"cookie",
        b"expect",
        b"proxy-authorization",
        b"transfer-encoding",
        b"upgrade",
        NAME,
    ]
)
_LINES_AROUND = 2
"""The request line before the headers, and the empty line after them."""


class KnownHead(Struct, frozen=True):
    """The parts that all requests with one head share."""

    method: str
    path: str
    query: str
    headers: Headers
    fields: dict[bytes, bytes]
    body_bytes: int
    key_digest: bytes | None = None
    """Digest of the API key in the head."""
    shortcut: Shortcut | None = None
    """Takes the bodies of these requests on the short path; None if there is no short path."""

    def request(self, body: bytes) -> Request:
        """Return a request with this head and the given body."""
        return Request(self.method, self.path, self.query, self.headers, body, self.fields, self.key_digest)


Finder = Callable[[Request], Shortcut | None]
"""Returns the shortcut for requests with the same head as the given request."""


class Heads:
    """The kept heads, by their bytes including the empty line; heads with a key by the digest of their bytes."""

    def __init__(self) -> None:
        self.known: dict[bytes, KnownHead] = {}
        self._with_key: dict[bytes, KnownHead] = {}

    def __len__(self) -> int:
        return len(self.known) + len(self._with_key)

    def forget(self) -> None:
        """Drop all entries, so that every head is parsed again."""
        self.known.clear()
        self._with_key.clear()

    def find(self, raw: bytes) -> KnownHead | None:
        """Return the entry of a head that contains a key, or None. Other heads are in `known`."""
        return self._with_key.get(sha256(raw).digest()) if self._with_key and len(raw) <= HEAD_KEPT_MAX else None

    def learn(self, raw: bytes, target: bytes, request: Request, shortcut: "Finder | None" = None) -> None:
        """Keep the head of a parsed request that began with `raw`, if it qualifies. The connection must stay open."""
        headers = request.headers
        names = [name for name, _ in headers]
        lines = len(headers) + _LINES_AROUND
        if (
            request.method not in _METHODS
            or not raw.startswith(b"%b %b HTTP/1.1\r\n" % (request.method.encode(), target))
            or not raw.count(b"\r\n") == raw.count(b"\n") == raw.count(b"\r") == lines
            or not _NEVER_KEPT.isdisjoint(names)
            or b"token" in target
            or b"%" in target
        ):
            return
        fields = dict(reversed(headers))
        body_bytes = int(fields.get(b"content-length", b"0"))
        assert body_bytes == len(request.body), "without another encoding, a body is as long as its content-length"
        authorization = fields.pop(_KEY, None)
        key = None if authorization is None else key_in(authorization)
        if authorization is None:
            kept, by, digest = self.known, raw, None
        elif key is not None:
            headers = [header for header in headers if header[0] != _KEY]
            kept, by, digest = self._with_key, sha256(raw).digest(), digest_of(key)
        else:
            return
        if len(kept) >= HEADS_KEPT_MAX:
            kept.clear()
        kept[by] = KnownHead(
            request.method,
            request.path,
            request.query,
            headers,
            fields,
            body_bytes,
            digest,
            None if shortcut is None else shortcut(request),
        )
