"""One HTTP request, as the handlers get it."""

from collections.abc import Callable
from urllib.parse import parse_qsl

from msgspec import Struct

from driftq.errors import DriftQError
from driftq.http.access import FULL, Access

Headers = list[tuple[bytes, bytes]]

_METHODS = {b"GET": "GET", b"POST": "POST", b"PUT": "PUT", b"PATCH": "PATCH", b"DELETE": "DELETE"}
_DIGITS_MAX = 20
"""The largest number of digits of a 64-bit number."""


class Request(Struct, eq=False):
    """A method, a target split into path and query, headers with names in lower case, and the whole body.

    The fields from `fields` on are filled in while the request is processed. A request object serves one call only.
    """

    method: str
    path: str
    query: str = ""
    headers: Headers = []
    body: bytes = b""
    fields: dict[bytes, bytes] | None = None
    """The first header of each name, for `header`; None until `header` is first called."""
    key_digest: bytes | None = None
    """Digest of the key in the head, if the connection has already read it: then the key is in no header."""
    oversized: bool = False
    """Whether the body exceeded the limit; then `body` is empty."""
    fault: DriftQError | None = None
    """The error in the encoding of the body, raised by a handler that reads the body; then `body` is empty."""
    params: tuple[str, ...] = ()
    """The path segments that matched the route's colons, percent-decoded."""
    access: Access = FULL
    began_ns: int = 0
    """Time on the monotonic clock at which handling began, in ns."""
    waits: bool = False
    """Whether the caller asked to wait for the answer: then the request is never logged as slow."""
    request_id: bytes = b""
    """The id used in the answer and in the log; empty until `http.request_id` first sets it."""
    on_hang_up: Callable[[], None] | None = None
    """Set by a handler that lets its caller wait; called when the caller is gone or sends no more, or at shutdown."""

    @classmethod
    def of(cls, method: bytes, target: bytes, headers: Headers, body: bytes, *, oversized: bool = False) -> "Request":
        """Build a request from its parts as received."""
        # A proxy sends an absolute target, which begins with the host (RFC 9112 §3.2.2).
        if not target.startswith(b"/") and target[:7].lower() == b"http://":
            target = b"/" + target[7:].partition(b"/")[2]
        path, query = _known_targets.get(target) or _cut(target)
        return cls(_METHODS.get(method) or method.decode("latin-1"), path, query, headers, body, oversized=oversized)

    def hang_up(self) -> None:
        """Call `on_hang_up` once: the caller is gone or sends no more, or the server shuts down."""
        hung_up, self.on_hang_up = self.on_hang_up, None
        if hung_up is not None:
            hung_up()

    def header(self, name: bytes) -> bytes | None:
        """Return the first header of a name; the name must be in lower case."""
        fields = self.fields
        if fields is None:
            fields = self.fields = dict(reversed(self.headers))
        return fields.get(name)

    def argument(self, name: str) -> str | None:
        """Return the first query argument of a name, form-decoded."""
        return _arguments(self.query).get(name) if name in self.query else None

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean argument (true, 1, false, 0); the default for any other text."""
        return _FLAGS.get(_arguments(self.query).get(name, ""), default) if self.query else default

    def number(self, name: str, default: int) -> int:
        """Return an integer argument that is not negative; the default for text that is not a number."""
        text = self.argument(name)
        if text is None or len(text) > _DIGITS_MAX or not (text.isascii() and text.isdecimal()):
            return default
        return int(text)


_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_QUERY_KEPT_MAX = 64
_QUERIES_KEPT_MAX = 1024
_known_queries: dict[str, dict[str, str]] = {}
"""Arguments of recently used short queries: most callers repeat a few queries often."""


_TARGET_KEPT_MAX = 128
_TARGETS_KEPT_MAX = 1024
_known_targets: dict[bytes, tuple[str, str]] = {}
"""Recently used short targets, split. As with queries, none that may contain a token."""


def _cut(target: bytes) -> tuple[str, str]:
    """Split a target into its path and its query."""
    path, _, query = target.decode("latin-1").partition("?")
    if len(target) <= _TARGET_KEPT_MAX and b"token" not in target and b"%" not in target:
        if len(_known_targets) >= _TARGETS_KEPT_MAX:
            _known_targets.clear()
        _known_targets[target] = path, query
    return path, query


def _arguments(query: str) -> dict[str, str]:
    """Return the arguments of a query; of several with one name, the first."""
    known = _known_queries.get(query)
    if known is not None:
        return known
    pairs = parse_qsl(query, keep_blank_values=True, encoding="utf-8", errors="replace")
    arguments = dict(reversed(pairs))
    # A token is a key: it must not stay in memory longer than its request.
    if len(query) <= _QUERY_KEPT_MAX and "token" not in arguments:
        if len(_known_queries) >= _QUERIES_KEPT_MAX:
            _known_queries.clear()
        _known_queries[query] = arguments
    return arguments
