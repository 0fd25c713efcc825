"""The API keys (http-v0 §2): parsed once, kept as digests, compared without telling how close a guess was.

    entry     key | key:scopes | key:scopes:prefixes | key::prefixes      separated by commas
    scopes    joined by +, in any case: read r, write w, delete del d, admin a, rw; none means all
    prefixes  joined by |: beginnings of names; none means any name

Nothing that leaves this module, an error included, holds a key or a part of one.
"""

from collections.abc import Iterable
from functools import reduce
from hashlib import sha256
from hmac import compare_digest
from operator import or_

from driftq.errors import StartError
from driftq.http.access import EVERYTHING, NOTHING, Access, Scope
from driftq.http.request import Request

_SCOPES = {
    "read": Scope.READ,
    "r": Scope.READ,
    "write": Scope.WRITE,
    "w": Scope.WRITE,
    "delete": Scope.DELETE,
    "del": Scope.DELETE,
    "d": Scope.DELETE,
    "admin": Scope.ADMIN,
    "a": Scope.ADMIN,
    "rw": Scope.READ | Scope.WRITE,
}
_SCHEME = b"Bearer "


class ApiKeys:
    """Who may come in. Without any, everybody may."""

    def __init__(self, entries: Iterable[tuple[bytes, Access]] = ()) -> None:
        self._entries = tuple(entries)

    def __bool__(self) -> bool:
        return bool(self._entries)

    @classmethod
    def parse(cls, text: str) -> "ApiKeys":
        """The keys of DRIFTQ_API_KEYS. Raises StartError."""
        entries = [entry for entry in map(str.strip, text.split(",")) if entry]
        return cls(_entry(entry, number) for number, entry in enumerate(entries))

    def who(self, request: Request, *, form_token: bool) -> Access | None:
        """Who is asking; None where it is nobody known."""
        digest = request.key_digest
        if digest is None:
            token = presented(request, form_token=form_token)
            if token is None:
                return None
            digest = digest_of(token)
        return self._whose(digest)

    def find(self, token: bytes) -> Access | None:
        """Whose key this is."""
        return self._whose(digest_of(token))

    def _whose(self, digest: bytes) -> Access | None:
        """Every key is compared, whichever fits."""
        found: Access | None = None
        for known, access in self._entries:
            if compare_digest(digest, known) and found is None:
                found = access
        return found


def _entry(entry: str, number: int) -> tuple[bytes, Access]:
    secret, _, rest = entry.partition(":")
    scopes, _, prefixes = rest.partition(":")
    secret = secret.strip()
    if not secret:
        raise StartError(f"entry {number + 1} of DRIFTQ_API_KEYS has no key")
    allowed = tuple(prefix for prefix in prefixes.split("|") if prefix)
    access = Access(number, _scopes(scopes.strip(), number), allowed)
    return digest_of(secret.encode("utf-8", "surrogateescape")), access


def _scopes(text: str, number: int) -> Scope:
    if not text:
        return EVERYTHING
    named = [_SCOPES.get(word.strip().lower()) for word in text.split("+")]
    if None in named:
        known = ", ".join(_SCOPES)
        raise StartError(f"entry {number + 1} of DRIFTQ_API_KEYS has an unknown scope; there are {known}")
    return reduce(or_, (scope for scope in named if scope is not None), NOTHING)


def presented(request: Request, *, form_token: bool) -> bytes | None:
    """The key that came with a request: in its header, else in the query where that counts."""
    header = request.header(b"authorization")
    if header is not None:
        return key_in(header)
    token = request.argument("token") if form_token else None
    return None if token is None else token.encode("utf-8", "surrogatepass")


def key_in(header: bytes) -> bytes | None:
    """The key in the value of an `Authorization` header."""
    return header[len(_SCHEME) :].strip() if header.startswith(_SCHEME) else None


def digest_of(token: bytes) -> bytes:
    """What is kept of a key."""
    return sha256(token).digest()
