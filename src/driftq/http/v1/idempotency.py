"""The idempotency registry over HTTP (http-v1 §22): begin, renew, commit and fail, for one key or for a batch of keys;
and a GET of one entry.
"""

from base64 import b64decode, b64encode
from binascii import Error as NoBase64
from collections.abc import Callable
from functools import partial

from msgspec import Struct
from msgspec.json import Decoder

from driftq.errors import InvalidRequestError, NotFoundError
from driftq.features.broker.idempotency.consumed_keys import ConsumedKey
from driftq.features.broker.idempotency.registry import LEASE_MS, BeginResult
from driftq.features.broker.protocols import KeyOwner as KeyScope
from driftq.http.access import Scope
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v1.messages.batch_entries import answered, given_entries
from driftq.http.v1.params import I64, check_name, only_body, query_of, stripped
from driftq.http.v1.replies import json_reply
from driftq.server import Server
from driftq.system.runtime import Pending

_PATH = "/v1/idempotency"

Standing = dict[str, object]
"""The state of a key after a call, as it is answered."""


class KeyBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a call about one key."""

    tenant_id: str | None = None
    topic: str | None = None
    group: str | None = None
    idempotency_key: str | None = None
    owner: str | None = None
    lease_ms: I64 | None = None
    result: str | None = None
    error: str | None = None


class KeyBatchEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """One key in the request body of a batch call. A commit uses `result`, a fail uses `error`."""

    tenant_id: str | None = None
    idempotency_key: str | None = None
    result: str | None = None
    error: str | None = None


class KeyBatch(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a call about many keys of one group and one owner."""

    topic: str | None = None
    group: str | None = None
    owner: str | None = None
    lease_ms: I64 | None = None
    entries: list[KeyBatchEntry] | None = None


class _Asked(Struct, frozen=True):
    scope: KeyScope
    owner: str
    lease_ms: int
    result: bytes
    error: str


_Call = Callable[[_Asked], Standing | Pending[Standing]]


class IdempotencyEndpoints:
    """Begins, renews, commits, fails and reports keys: the handlers of `/v1/idempotency`."""

    def __init__(self, server: Server) -> None:
        self._registry = server.registry
        self._body_bytes_max = server.settings.limits.body_bytes_max
        self._decoder = Decoder(KeyBody)
        self._batches = Decoder(KeyBatch)

    def routes(self) -> list[Route]:
        """Return the route of one entry, and two routes (one key, a batch) for each verb."""
        calls: dict[str, _Call] = {
            "begin": self._begin,
            "renew": self._renew,
            "commit": self._commit,
            "fail": self._fail,
        }
        routes = [Route("GET", _PATH, self.get, Scope.READ)]
        for verb, call in calls.items():
            routes.append(Route("POST", f"{_PATH}/{verb}", partial(self._one, call), Scope.WRITE))
            routes.append(Route("POST", f"{_PATH}/{verb}/batch", partial(self._many, call), Scope.WRITE))
        return routes

    def get(self, request: Request) -> Reply:
        """Return the entry of a key. Raise NotFoundError if there is none."""
        query = query_of(request)
        scope = _scope(request, *map(query.get, ("tenant_id", "topic", "group", "idempotency_key")))
        entry = self._registry.entry(scope)
        if entry is None:
            raise NotFoundError("idempotency: key not found")
        return json_reply(200, self._shown(entry))

    def _one(self, call: _Call, request: Request) -> Reply | Pending[Reply]:
        """Return the answer to a call about one key."""
        given = only_body(self._decoder, request, self._body_bytes_max)
        scope = _scope(request, given.tenant_id, given.topic, given.group, given.idempotency_key)
        owner = stripped(given.owner)
        if not owner:
            raise _incomplete()
        found = call(_asked(scope, owner, given.lease_ms, given.result, given.error))
        if isinstance(found, Pending):
            return found.mapped(lambda standing: json_reply(200, standing))
        return json_reply(200, found)

    def _many(self, call: _Call, request: Request) -> Pending[Reply]:
        """Return the answer to a call about many keys: one result for each."""
        given = only_body(self._batches, request, self._body_bytes_max)
        entries = given_entries(given.entries)
        topic, group, owner = map(stripped, (given.topic, given.group, given.owner))
        if not (topic and group and owner):
            raise _incomplete()
        check_name(request, topic)

        def ask(entry: KeyBatchEntry) -> Standing | Pending[Standing]:
            scope = KeyScope(stripped(entry.tenant_id), topic, group, stripped(entry.idempotency_key))
            if not scope.key:
                raise _incomplete()
            return call(_asked(scope, owner, given.lease_ms, entry.result, entry.error))

        return answered(request, entries, ask, lambda standing: {"code": 200, **standing})

    def _begin(self, asked: _Asked) -> Standing:
        """Lease a key to an owner, unless its work is already done."""
        return _begun(self._registry.begin_key(asked.scope, asked.owner, asked.lease_ms))

    def _renew(self, asked: _Asked) -> Standing:
        """Extend the lease of a key."""
        until = self._registry.renew_key(asked.scope, asked.owner, asked.lease_ms)
        return {"status": "PENDING", "already_done": False, "lease_until_ms": until}

    def _commit(self, asked: _Asked) -> Pending[Standing]:
        """Store the result of a key and mark it as committed."""
        committed = self._registry.commit_key(asked.scope, asked.owner, asked.result)
        return committed.mapped(lambda _: {"status": "COMMITTED", "already_done": True})

    def _fail(self, asked: _Asked) -> Pending[Standing]:
        """Note that the work of a key failed."""
        failed = self._registry.fail_key(asked.scope, asked.owner, asked.error)
        return failed.mapped(lambda _: {"status": "FAILED", "already_done": False})

    def _shown(self, entry: ConsumedKey) -> dict[str, object]:
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


def _asked(scope: KeyScope, owner: str, lease_ms: int | None, result: str | None, error: str | None) -> _Asked:
    """Return the checked values of a call about a key. Raise InvalidRequestError if the result is not base64."""
    return _Asked(scope, owner, LEASE_MS if lease_ms is None else lease_ms, _decoded(result or ""), stripped(error))


def _incomplete() -> InvalidRequestError:
    return InvalidRequestError("topic, group, idempotency_key, and owner are required")


def _decoded(result: str) -> bytes:
    try:
        return b64decode(result, validate=True)
    except (NoBase64, ValueError):
        raise InvalidRequestError("invalid result") from None


def _begun(begun: BeginResult) -> Standing:
    if begun.already_done:
        result = b64encode(begun.prior_result or b"").decode()
        return {"status": "COMMITTED", "already_done": True, "result": result}
    return {"status": "PENDING", "already_done": False, "lease_until_ms": begun.lease_until}
