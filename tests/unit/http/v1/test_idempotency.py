"""The idempotency helper over HTTP, on a whole server."""

from base64 import b64encode
from typing import Any

import pytest

from driftq.testing import Asked, ServerRig

WORK: dict[str, Any] = {"topic": "t", "group": "g", "idempotency_key": "k", "owner": "a"}
ENTRY = "/v1/idempotency?topic=t&group=g&idempotency_key=k"


@pytest.fixture
def rig() -> ServerRig:
    rig = ServerRig()
    assert rig.ask("POST", "/v1/topics", {"name": "t"}).status == 201
    return rig


def _call(rig: ServerRig, operation: str, **fields: Any) -> Asked:
    return rig.ask("POST", f"/v1/idempotency/{operation}", WORK | fields)


def test_begin_commit_and_whoever_begins_again_gets_the_result(rig: ServerRig) -> None:
    """inv1: 68"""
    begun = _call(rig, "begin")
    until = rig.clock.wall_ms() + 30_000
    assert begun == (200, {"status": "PENDING", "already_done": False, "lease_until_ms": until})
    result = b64encode(b"\x00\xff").decode()
    assert _call(rig, "commit", result=result) == (200, {"status": "COMMITTED", "already_done": True})
    rig.crash()
    again = _call(rig, "begin", owner="b")
    assert again == (200, {"status": "COMMITTED", "already_done": True, "result": result})
    status, entry = rig.ask("GET", ENTRY)
    assert (status, entry["status"], entry["owner"], entry["result"]) == (200, "COMMITTED", "a", result)


def test_held_lost_and_unknown_are_told_apart(rig: ServerRig) -> None:
    """inv1: 69"""
    for operation in ("renew", "commit", "fail"):
        assert _call(rig, operation) == (404, {"error": "NOT_FOUND", "message": "idempotency: key not found"})
    assert rig.ask("GET", ENTRY).status == 404
    _call(rig, "begin", lease_ms=250)
    held = {"error": "FAILED_PRECONDITION", "message": "idempotency: lease held by another worker"}
    for operation in ("begin", "renew", "commit", "fail"):
        assert _call(rig, operation, owner="b") == (409, held)
    rig.runtime.advance(250)
    lost = {"error": "FAILED_PRECONDITION", "message": "idempotency: lease lost or expired"}
    for operation in ("renew", "commit", "fail"):
        assert _call(rig, operation) == (409, lost)
    assert _call(rig, "begin", owner="b").status == 200


def test_a_failure_is_shown_with_its_error(rig: ServerRig) -> None:
    _call(rig, "begin")
    assert _call(rig, "fail", error="boom") == (200, {"status": "FAILED", "already_done": False})
    entry = rig.ask("GET", ENTRY).body
    assert (entry["status"], entry["last_error"]) == ("FAILED", "boom")


def test_a_renewal_moves_the_end_of_the_lease(rig: ServerRig) -> None:
    _call(rig, "begin")
    assert _call(rig, "renew", lease_ms=90_000).body["lease_until_ms"] == rig.clock.wall_ms() + 90_000


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"owner": " "}, "topic, group, idempotency_key, and owner are required"),
        ({"idempotency_key": None}, "topic, group, idempotency_key, and owner are required"),
        ({"lease_ms": 249}, "idempotency: invalid lease duration"),
        ({"lease_ms": 600_001}, "idempotency: invalid lease duration"),
        ({"topic": "nowhere"}, "topic does not exist"),
    ],
)
def test_what_cannot_be_meant_is_400(rig: ServerRig, changed: dict[str, Any], message: str) -> None:
    assert _call(rig, "begin", **changed) == (400, {"error": "INVALID_ARGUMENT", "message": message})
    assert rig.ask("GET", ENTRY).status == 404


def test_a_result_is_base64_of_so_many_bytes(rig: ServerRig) -> None:
    _call(rig, "begin")
    for result in ("not base64!", "ü"):
        assert _call(rig, "commit", result=result).status == 400
    assert _call(rig, "commit", result=b64encode(bytes((64 << 10) + 1)).decode()).status == 413
    assert _call(rig, "commit", result=b64encode(bytes(64 << 10)).decode()).status == 200


def test_a_look_needs_topic_group_and_key(rig: ServerRig) -> None:
    assert rig.ask("GET", "/v1/idempotency?topic=t&group=g").status == 400
