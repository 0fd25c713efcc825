"""One request, as handlers see it."""

from collections.abc import Callable
from urllib.parse import parse_qsl

from msgspec import Struct

from driftq.errors import DriftQError
from driftq.http.access import FULL, Access

Headers = list[tuple[bytes, bytes]]

_METHODS = {b"GET": "GET", b"POST": "POST", b"PUT": "PUT", b"PATCH": "PATCH", b"DELETE": "DELETE"}
_DIGITS_MAX = 20
"""What a 64-bit number takes at most."""


class Request(Struct, eq=False):
    """A method, a target cut at its question mark, headers with names in lower case, and the whole body.

    What stands behind the fields is filled in on the way: a request is made once per call, and nobody keeps it longer.
    """

    method: str
    path: str
    query: str = ""
    headers: Headers = []
    body: bytes = b""
    fields: dict[bytes, bytes] | None = None
    """Of each name the first header, for `header`; None as long as nobody has asked."""
    key_digest: bytes | None = None
    """Of the key that stood in the head, where that was read before: then it is in no header."""
    oversized: bool = False
    """Was the body longer than it may be? Then it is not here."""
    fault: DriftQError | None = None
    """What is wrong with the coding of the body, for whoever wants the body to raise. Then it is not here."""
    params: tuple[str, ...] = ()
    """What stood in the place of the route's colons, decoded."""
    access: Access = FULL
    began_ns: int = 0
    """When it was taken up, on the monotonic clock."""
    waits: bool = False
    """Is it answered late because its caller asks for that? Then it is never slow."""
    request_id: bytes = b""
    """What it is called in its answer and in the log; empty until somebody asks (`http.request_id`)."""
    on_hang_up: Callable[[], None] | None = None
    """What a handler that lets its caller wait wants called when that one is gone, or is in a hurry."""

    @classmethod
    def of(cls, method: bytes, target: bytes, headers: Headers, body: bytes, *, oversized: bool = False) -> "Request":
        """From what stood on the wire."""
        # A proxy's form of the target names the host first (RFC 9112 §3.2.2).
        if not target.startswith(b"/") and target[:7].lower() == b"http://":
            target = b"/" + target[7:].partition(b"/")[2]
        path, query = _known_targets.get(target) or _cut(target)
        return cls(_METHODS.get(method) or method.decode("latin-1"), path, query, headers, body, oversized=oversized)

    def hang_up(self) -> None:
        """From the connection: the caller is gone, sends no more, or the server is going. Who can answer now, does."""
        hung_up, self.on_hang_up = self.on_hang_up, None
        if hung_up is not None:
            hung_up()

    def header(self, name: bytes) -> bytes | None:
        """The first header of a name, which is in lower case."""
        fields = self.fields
        if fields is None:
            fields = self.fields = dict(reversed(self.headers))
        return fields.get(name)

    def argument(self, name: str) -> str | None:
        """The first argument of a name in the query, form-decoded."""
        return _arguments(self.query).get(name) if name in self.query else None

    def flag(self, name: str, default: bool) -> bool:
        """A boolean argument; what is none of the four words is the default."""
        return _FLAGS.get(_arguments(self.query).get(name, ""), default) if self.query else default

    def number(self, name: str, default: int) -> int:
        """An integer argument that is not negative; what cannot be read is the default."""
        text = self.argument(name)
        if text is None or len(text) > _DIGITS_MAX or not (text.isascii() and text.isdecimal()):
            return default
        return int(text)


_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_QUERY_KEPT_MAX = 64
_QUERIES_KEPT_MAX = 1024
_known_queries: dict[str, dict[str, str]] = {}
"""Short queries that were asked lately: most callers ask few, and often."""


_TARGET_KEPT_MAX = 128
_TARGETS_KEPT_MAX = 1024
_known_targets: dict[bytes, tuple[str, str]] = {}
"""Short targets that were asked for lately, cut. As with queries, none that may hold a token."""


def _cut(target: bytes) -> tuple[str, str]:
    """Path and query of a target."""
    path, _, query = target.decode("latin-1").partition("?")
    if len(target) <= _TARGET_KEPT_MAX and b"token" not in target and b"%" not in target:
        if len(_known_targets) >= _TARGETS_KEPT_MAX:
            _known_targets.clear()
        _known_targets[target] = path, query
    return path, query


def _arguments(query: str) -> dict[str, str]:
    """The arguments of a query, of each name the first."""
    known = _known_queries.get(query)
    if known is not None:
        return known
    pairs = parse_qsl(query, keep_blank_values=True, encoding="utf-8", errors="replace")
    arguments = dict(reversed(pairs))
    # A token is a key: it is not to be found in memory longer than its request.
    if len(query) <= _QUERY_KEPT_MAX and "token" not in arguments:
        if len(_known_queries) >= _QUERIES_KEPT_MAX:
            _known_queries.clear()
        _known_queries[query] = arguments
    return arguments
