"""The API keys (http-v0 §2): parsed once, stored as digests, compared in constant time.

    entry     key | key:scopes | key:scopes:prefixes | key::prefixes      separated by commas
    scopes    joined by +, in any case: read r, write w, delete del d, admin a, rw; none means all
    prefixes  joined by |: prefixes of names; none means any name

Nothing that leaves this module, an error included, contains a key or a part of one.
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
    """The configured API keys with their rights. Without any key, every caller has full rights."""

    def __init__(self, entries: Iterable[tuple[bytes, Access]] = ()) -> None:
        self._entries = tuple(entries)

    def __bool__(self) -> bool:
        return bool(self._entries)

    @classmethod
    def parse(cls, text: str) -> "ApiKeys":
        """Parse the value of DRIFTQ_API_KEYS. Raise StartError if an entry is invalid."""
        entries = [entry for entry in map(str.strip, text.split(",")) if entry]
        if text and not entries:
            raise StartError("DRIFTQ_API_KEYS contains no key; unset it to start without keys")
        return cls(_entry(entry, number) for number, entry in enumerate(entries))

    def who(self, request: Request, *, form_token: bool) -> Access | None:
        """Return the rights of the request's key, or None if the key is missing or unknown."""
        digest = request.key_digest
        if digest is None:
            token = presented(request, form_token=form_token)
            if token is None:
                return None
            digest = digest_of(token)
        return self._whose(digest)

    def find(self, token: bytes) -> Access | None:
        """Return the rights of a key, or None if it is unknown."""
        return self._whose(digest_of(token))

    def _whose(self, digest: bytes) -> Access | None:
        """Return the rights of the key with this digest. Compares all keys, so the time does not reveal a match."""
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
        raise StartError(f"entry {number + 1} of DRIFTQ_API_KEYS has an unknown scope; known scopes: {known}")
    return reduce(or_, (scope for scope in named if scope is not None), NOTHING)


def presented(request: Request, *, form_token: bool) -> bytes | None:
    """Return the key that a request carries: in its header, else in its query if `form_token` allows that."""
    header = request.header(b"authorization")
    if header is not None:
        return key_in(header)
    token = request.argument("token") if form_token else None
    return None if token is None else token.encode("utf-8", "surrogatepass")


def key_in(header: bytes) -> bytes | None:
    """Return the key in the value of an `Authorization` header, or None if the scheme is not Bearer."""
    return header[len(_SCHEME) :].strip() if header.startswith(_SCHEME) else None


def digest_of(token: bytes) -> bytes:
    """Return the digest under which a key is stored."""
    return sha256(token).digest()
