"""The idempotency registry over HTTP (http-v1 §22): begin, renew, commit and fail, and a look at an entry."""

from base64 import b64decode, b64encode
from binascii import Error as NoBase64

from msgspec import Struct
from msgspec.json import Decoder

from driftq.errors import InvalidRequestError, NotFoundError
from driftq.groups.consume_scope import Entry
from driftq.groups.ports import Scope as KeyScope
from driftq.groups.registry import LEASE_MS, Begun
from driftq.http.access import Scope
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v1.form import after, json_reply
from driftq.http.v1.names import check_name
from driftq.http.v1.params import I64, only_body, query_of, stripped
from driftq.seam.runtime import Pending
from driftq.server import Server

_PATH = "/v1/idempotency"


class KeyBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A key, and what is to become of it."""

    tenant_id: str | None = None
    topic: str | None = None
    group: str | None = None
    idempotency_key: str | None = None
    owner: str | None = None
    lease_ms: I64 | None = None
    result: str | None = None
    error: str | None = None


class _Asked(Struct, frozen=True):
    scope: KeyScope
    owner: str
    lease_ms: int
    result: bytes
    error: str


class Idempotency:
    """The handlers."""

    def __init__(self, server: Server) -> None:
        self._registry = server.registry
        self._body_bytes_max = server.settings.limits.body_bytes_max
        self._decoder = Decoder(KeyBody)

    def routes(self) -> list[Route]:
        """Five."""
        return [
            Route("GET", _PATH, self.get, Scope.READ),
            Route("POST", f"{_PATH}/begin", self.begin, Scope.WRITE),
            Route("POST", f"{_PATH}/renew", self.renew, Scope.WRITE),
            Route("POST", f"{_PATH}/commit", self.commit, Scope.WRITE),
            Route("POST", f"{_PATH}/fail", self.fail, Scope.WRITE),
        ]

    def get(self, request: Request) -> Reply:
        """What is known of a key."""
        query = query_of(request)
        scope = _scope(request, *map(query.get, ("tenant_id", "topic", "group", "idempotency_key")))
        entry = self._registry.entry(scope)
        if entry is None:
            raise NotFoundError("idempotency: key not found")
        return json_reply(200, self._shown(entry))

    def begin(self, request: Request) -> Reply:
        """Take a key, unless its work is done."""
        asked = self._asked(request)
        begun = self._registry.begin_key(asked.scope, asked.owner, asked.lease_ms)
        return json_reply(200, _begun(begun))

    def renew(self, request: Request) -> Reply:
        """Keep it."""
        asked = self._asked(request)
        until = self._registry.renew_key(asked.scope, asked.owner, asked.lease_ms)
        return json_reply(200, {"status": "PENDING", "already_done": False, "lease_until_ms": until})

    def commit(self, request: Request) -> Pending[Reply]:
        """Its work is done."""
        asked = self._asked(request)
        pending = self._registry.commit_key(asked.scope, asked.owner, asked.result)
        return after(pending, lambda _: json_reply(200, {"status": "COMMITTED", "already_done": True}))

    def fail(self, request: Request) -> Pending[Reply]:
        """It failed."""
        asked = self._asked(request)
        pending = self._registry.fail_key(asked.scope, asked.owner, asked.error)
        return after(pending, lambda _: json_reply(200, {"status": "FAILED", "already_done": False}))

    def _asked(self, request: Request) -> _Asked:
        given = only_body(self._decoder, request, self._body_bytes_max)
        scope = _scope(request, given.tenant_id, given.topic, given.group, given.idempotency_key)
        owner = stripped(given.owner)
        if not owner:
            raise _incomplete()
        lease_ms = LEASE_MS if given.lease_ms is None else given.lease_ms
        return _Asked(scope, owner, lease_ms, _decoded(given.result or ""), stripped(given.error))

    def _shown(self, entry: Entry) -> dict[str, object]:
        return {
            "status": entry.status.value,
            "owner": entry.owner,
            "lease_until_ms": self._registry.shown(entry.lease_until),
            "result": b64encode(entry.result).decode(),
            "last_error": entry.last_error,
            "updated_at_ms": self._registry.shown(entry.updated_at),
        }


def _scope(request: Request, tenant: str | None, topic: str | None, group: str | None, key: str | None) -> KeyScope:
    scope = KeyScope(*map(stripped, (tenant, topic, group, key)))
    if not (scope.topic and scope.group and scope.key):
        raise _incomplete()
    check_name(request, scope.topic)
    return scope


def _incomplete() -> InvalidRequestError:
    return InvalidRequestError("topic, group, idempotency_key, and owner are required")


def _decoded(result: str) -> bytes:
    try:
        return b64decode(result, validate=True)
    except (NoBase64, ValueError):
        raise InvalidRequestError("invalid result") from None


def _begun(begun: Begun) -> dict[str, object]:
    if begun.already_done:
        result = b64encode(begun.prior_result or b"").decode()
        return {"status": "COMMITTED", "already_done": True, "result": result}
    return {"status": "PENDING", "already_done": False, "lease_until_ms": begun.lease_until}
