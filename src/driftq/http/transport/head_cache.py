"""Heads of HTTP/1 requests that were read before, so that the same bytes are not parsed again.

What a head means depends on its bytes alone, so one that was parsed for any peer holds for all. Kept is a head only if
    - it is that of a plain request: nothing about its body but a length, no other protocol, no `Expect`, and the
      connection goes on behind it;
    - its bytes are what the parser made of them line by line, so that it ends at its first empty line;
    - it does not name its request (`x-request-id`): names differ, and heads with them would push out all others;
    - it carries no secret but a key, and neither the key nor the bytes it stood in: a key is not to be found in memory
      longer than its request. Digests of both are kept, as the server keeps those of its own keys.
"""

from collections.abc import Callable
from hashlib import sha256

from msgspec import Struct

from driftq.http.answer import Shortcut
from driftq.http.keys import digest_of, key_in
from driftq.http.request import Headers, Request
from driftq.http.request_id import NAME

HEAD_KEPT_MAX = 1024
"""A longer one is not kept."""
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
"""The line before the headers, and the empty one behind them."""


class KnownHead(Struct, frozen=True):
    """What all requests with one head have in common."""

    method: str
    path: str
    query: str
    headers: Headers
    fields: dict[bytes, bytes]
    body_bytes: int
    key_digest: bytes | None = None
    """Of the key that stood in it."""
    shortcut: Shortcut | None = None
    """What takes their bodies, where there is one."""

    def request(self, body: bytes) -> Request:
        """One of them."""
        return Request(self.method, self.path, self.query, self.headers, body, self.fields, self.key_digest)


Finder = Callable[[Request], Shortcut | None]
"""Finds the shortcut of requests that have the head of this one."""


class Heads:
    """Those that are kept, by their bytes, the empty line included; those with a key by the digest of their bytes."""

    def __init__(self) -> None:
        self.known: dict[bytes, KnownHead] = {}
        self._with_key: dict[bytes, KnownHead] = {}

    def __len__(self) -> int:
        return len(self.known) + len(self._with_key)

    def forget(self) -> None:
        """Learn them all again."""
        self.known.clear()
        self._with_key.clear()

    def find(self, raw: bytes) -> KnownHead | None:
        """One that is not among `known`."""
        return self._with_key.get(sha256(raw).digest()) if self._with_key and len(raw) <= HEAD_KEPT_MAX else None

    def learn(self, raw: bytes, target: bytes, request: Request, shortcut: "Finder | None" = None) -> None:
        """A request that began with these bytes was parsed, and its connection goes on."""
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
        assert body_bytes == len(request.body), "without another coding a body is as long as its head says"
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
