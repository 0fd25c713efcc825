"""Ack, nack and extend: the checks that need no state, in their order (http-v1 §3.7)."""

from typing import Any

import pytest
from msgspec import json

from tests.unit.http.v1.brokered import BrokerRig

PLACE: dict[str, Any] = {"topic": "t", "group": "g", "owner": "o", "partition": 0, "offset": 7}
REQUIRED = "partition and offset are required"


@pytest.mark.parametrize("path", ["/v1/ack", "/v1/nack", "/v1/extend"])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"extra": 1, "offset": None}, "invalid json body: Object contains unknown field `extra`"),
        ({"owner": 5, "offset": None}, "invalid json body: Expected `str | null`, got `int` - at `$.owner`"),
        ({"partition": None}, REQUIRED),
        ({"offset": None, "topic": " "}, REQUIRED),
        ({"partition": 1.0, "topic": " "}, "invalid partition"),
        ({"partition": True}, "invalid partition"),
        ({"partition": 2**31}, "invalid partition"),
        ({"offset": "1"}, "invalid offset"),
        ({"offset": 2**63}, "invalid offset"),
        ({"owner": " ", "partition": -1}, "topic, group, and owner are required"),
        ({"partition": -1, "offset": -1}, "partition cannot be negative"),
        ({"offset": -1}, "offset cannot be negative"),
        ({"partition": -(2**31)}, "partition cannot be negative"),
        ({"partition": -(2**31) - 1}, "invalid partition"),
        ({"offset": -(2**63)}, "offset cannot be negative"),
    ],
)
def test_the_first_failure_wins(path: str, changed: dict[str, Any], message: str) -> None:
    """inv1: 44"""
    rig = BrokerRig()
    lease = {"lease_ms": 1000} if path == "/v1/extend" else {}
    assert rig.message(rig.post(path, PLACE | lease | changed)) == message
    assert rig.broker.settled == []


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("topic=t&group=g&owner=o&partition=0", REQUIRED),
        ("topic=t&group=g&owner=o&partition=&offset=1", REQUIRED),
        ("topic=t&group=g&owner=o&partition=x&offset=1", "invalid partition"),
        ("topic=t&group=g&owner=o&partition=0&offset=1.0", "invalid offset"),
        ("topic=t&group=g&partition=0&offset=1", "topic, group, and owner are required"),
        ("topic=t&group=g&owner=o&partition=0&offset=-1", "offset cannot be negative"),
        (f"topic=t&group=g&owner=o&partition={-(2**31)}&offset=0", "partition cannot be negative"),
    ],
)
def test_the_same_in_a_query(query: str, message: str) -> None:
    rig = BrokerRig()
    assert rig.message(rig.reply("POST", f"/v1/ack?{query}")) == message


def test_success_is_204_without_body_or_type() -> None:
    rig = BrokerRig()
    query = "topic=+t&group=g+&owner=o&partition=0&offset=7"
    for reply in (rig.post("/v1/ack", PLACE), rig.reply("POST", f"/v1/ack?{query}")):
        assert (reply.status, reply.body, reply.content_type) == (204, b"", b"")
    assert rig.broker.settled == [("ack", "t", "g", 0, 7, "o")] * 2


@pytest.mark.parametrize(
    ("asked", "reason"),
    [("reason=+a+", "a"), ("error=b", "b"), ("reason=&error=c", "c"), ("reason=a&error=b", "a"), ("", "")],
)
def test_the_reason_of_a_nack(asked: str, reason: str) -> None:
    rig = BrokerRig()
    assert rig.reply("POST", f"/v1/nack?topic=t&group=g&owner=o&partition=0&offset=7&{asked}").status == 204
    assert rig.post("/v1/nack", PLACE | {"reason": f" {reason}\n"}).status == 204
    assert rig.broker.settled == [("nack", "t", "g", 0, 7, "o", reason)] * 2
    assert rig.post("/v1/nack", PLACE | {"error": "only in a query"}).status == 400


@pytest.mark.parametrize("lease_ms", [None, 0, -1, "1000", 1.0, 2**63])
def test_an_extension_needs_a_time(lease_ms: Any) -> None:
    rig = BrokerRig()
    assert rig.message(rig.post("/v1/extend", PLACE | {"lease_ms": lease_ms})) == "invalid lease_ms"
    reply = rig.post("/v1/extend", PLACE | {"lease_ms": 1000})
    assert json.decode(reply.body) == {"deadline_ms": 5000}
    assert rig.post("/v1/extend?topic=t&group=g&owner=o&partition=0&offset=7&lease_ms=5", b"").status == 400
