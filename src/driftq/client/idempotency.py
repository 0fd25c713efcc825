"""Calls for the idempotency keys of the broker (http-v1 §13, §22): single keys and batches."""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any, Literal, TypedDict, Unpack, cast

from msgspec import Struct

from driftq.client.batch_calls import each
from driftq.client.errors import ApiError
from driftq.client.transport.calls import present
from driftq.client.transport.operations import Async, Blocking, Operations, operation
from driftq.client.transport.plan import Plan
from driftq.model.v1_answers import KeyEntry, KeyResult, KeyResults, KeyStanding

Status = Literal["PENDING", "COMMITTED", "FAILED"]


class Key(Struct, frozen=True):
    """One key of a batch; `commit_batch` uses its `result`, `fail_batch` its `error`."""

    key: str
    tenant_id: str | None = None
    result: bytes = b""
    error: str = ""


class Begun(Struct, frozen=True):
    """The state of a key. With `already_done`, `result` is that of the owner who committed it."""

    status: Status
    already_done: bool
    result: bytes
    lease_until_ms: int


class Holding(TypedDict, total=False):
    """Options of `begin` and `renew`: the owner, the tenant of the key, and the length of the lease (default 30 s)."""

    owner: str | None
    tenant_id: str | None
    lease_ms: int | None


class IdempotencyOperations(Operations):
    """The keys of the work of a group: begin, do the work, commit, ack. `owner` defaults to the name of the client."""

    @operation
    def begin(self, topic: str, group: str, key: str, **named: Unpack[Holding]) -> Plan[Begun]:
        """Take the lease of a key, unless its work is done. Raise ConflictError while another owner holds it."""
        return self._key_call("begin", topic, group, key, **named)

    @operation
    def renew(self, topic: str, group: str, key: str, **named: Unpack[Holding]) -> Plan[Begun]:
        """Extend the leases of a key and of its delivery. Raise LeaseLostError if this owner no longer holds it."""
        return self._key_call("renew", topic, group, key, **named)

    @operation
    def commit(
        self,
        topic: str,
        group: str,
        key: str,
        *,
        result: bytes = b"",
        owner: str | None = None,
        tenant_id: str | None = None,
    ) -> Plan[Begun]:
        """Record that the work of a key is done, with its result of at most 64 KiB."""
        text = b64encode(result).decode() or None
        return self._key_call("commit", topic, group, key, owner=owner, tenant_id=tenant_id, result=text)

    @operation
    def fail(
        self, topic: str, group: str, key: str, *, error: str, owner: str | None = None, tenant_id: str | None = None
    ) -> Plan[Begun]:
        """Record that the work of a key failed; any owner may begin it again."""
        return self._key_call("fail", topic, group, key, owner=owner, tenant_id=tenant_id, error=error)

    @operation
    def begin_batch(
        self, topic: str, group: str, keys: Sequence[Key], *, owner: str | None = None, lease_ms: int | None = None
    ) -> Plan[list[Begun | ApiError]]:
        """Take up to 1000 keys in one call, each unless its work is done; return their states or errors, in order."""
        return self._each("begin", topic, group, keys, owner, lease_ms)

    @operation
    def renew_batch(
        self, topic: str, group: str, keys: Sequence[Key], *, owner: str | None = None, lease_ms: int | None = None
    ) -> Plan[list[Begun | ApiError]]:
        """Extend the leases of up to 1000 keys in one call; return their states or errors, in order."""
        return self._each("renew", topic, group, keys, owner, lease_ms)

    @operation
    def commit_batch(
        self, topic: str, group: str, keys: Sequence[Key], *, owner: str | None = None
    ) -> Plan[list[Begun | ApiError]]:
        """Commit up to 1000 keys, each with its result; return their states or errors, in order."""
        return self._each("commit", topic, group, keys, owner)

    @operation
    def fail_batch(
        self, topic: str, group: str, keys: Sequence[Key], *, owner: str | None = None
    ) -> Plan[list[Begun | ApiError]]:
        """Record that the work of up to 1000 keys failed, each with its error; return states or errors, in order."""
        return self._each("fail", topic, group, keys, owner)

    def _each(
        self,
        verb: str,
        topic: str,
        group: str,
        keys: Sequence[Key],
        owner: str | None,
        lease_ms: int | None = None,
    ) -> Plan[list[Begun | ApiError]]:
        shared = present({"topic": topic, "group": group, "owner": owner or self._node, "lease_ms": lease_ms})
        entries = [_entry(key) for key in keys]
        results = yield from each(self._calls, f"/v1/idempotency/{verb}/batch", shared, entries, KeyResults)
        return [one if isinstance(one, ApiError) else _begun(one) for one in results]

    def _key_call(self, verb: str, topic: str, group: str, key: str, **more: Any) -> Plan[Begun]:
        body = {"topic": topic, "group": group, "idempotency_key": key, **more}
        body["owner"] = body.get("owner") or self._node
        found = yield from self._calls.json("POST", f"/v1/idempotency/{verb}", KeyStanding, body=body)
        return _begun(found)

    @operation
    def get(self, topic: str, group: str, key: str, *, tenant_id: str | None = None) -> Plan[KeyEntry]:
        """Return the entry of a key. Raise NotFoundError if there is none."""
        query = {"topic": topic, "group": group, "idempotency_key": key, "tenant_id": tenant_id}
        return self._calls.json("GET", "/v1/idempotency", KeyEntry, query=query)


class Idempotency(IdempotencyOperations, Blocking):
    """Idempotency keys with blocking calls."""


class AsyncIdempotency(IdempotencyOperations, Async):
    """Idempotency keys with calls to await."""


def _begun(found: KeyStanding | KeyResult) -> Begun:
    result = b64decode(found.result) if found.result else b""
    return Begun(cast("Status", found.status), found.already_done, result, found.lease_until_ms)


def _entry(key: Key) -> dict[str, Any]:
    return present(
        {
            "idempotency_key": key.key,
            "tenant_id": key.tenant_id,
            "result": b64encode(key.result).decode() if key.result else None,
            "error": key.error or None,
        }
    )
