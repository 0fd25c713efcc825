"""Bodies that are not what they should be: 400 and an envelope, never 500, and nothing changes (http-v0 §1.3)."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json

from driftq.testing import ServerRig

WRITE = ("POST", "/v0/topics/t")
DIFF = ("POST", "/v0/topics/t/diff")
DELETE = ("POST", "/v0/topics/t/delete")
PUT = ("PUT", "/v0/topics/t")
ENDPOINTS = [WRITE, DIFF, DELETE, PUT]

RECORD = {"data": 1, "tag": "t", "node": "n", "meta": {"k": "v"}}
VALID: list[tuple[tuple[str, str], dict[str, Any]]] = [
    (
        WRITE,
        {
            "records": [RECORD],
            "node": "n",
            "idempotency_key": "k",
            "create": True,
            "config": {"ttl_ms": 0},
            "disable_backpressure": False,
        },
    ),
    (
        DIFF,
        {
            "from_seq": 0,
            "limit": 5,
            "node": ["a"],
            "include_tags": True,
            "include_meta": True,
            "wait_ms": 0,
            "max_batch_bytes": 1,
        },
    ),
    (DELETE, {"before_seq": 1, "match": ["tag", "Eq", "x"]}),
    (
        PUT,
        {
            "type": "log",
            "ttl_ms": 0,
            "cap_records": 0,
            "cap_bytes": 0,
            "discard": "old",
            "durable": False,
            "durability": "disk",
            "priority": 1,
            "auto_priority": True,
            "auto_create": True,
            "idempotency_window_ms": 5,
            "dedupe_node": True,
            "lease_ms": 500,
            "claim_jitter_ms": 0,
            "max_deliveries": 0,
            "dead_letter": "d",
            "leases_durable": False,
        },
    ),
]
NULLABLE = {
    "priority",
    "dead_letter",
    "durability",
    "node",
    "tag",
    "meta",
    "idempotency_key",
    "create",
    "config",
    "match",
    "before_seq",
}
_SAMPLES: dict[type, list[Any]] = {
    bool: [True],
    int: [7, 0, -1, 1 << 64],
    float: [1.0, 1.5, 1e300],
    str: ["7", "", "text"],
    list: [[], [1]],
    dict: [{}, {"k": 1}],
}


def wrong_for(value: Any) -> Iterator[Any]:
    """Values of every other type. A number that is an integer takes no fraction, a boolean is no number."""
    for kind, samples in _SAMPLES.items():
        if kind is not type(value):
            yield from samples
    if type(value) is int:
        yield from (1 << 64, 1.0)


@cache
def shared() -> ServerRig:
    rig = ServerRig()
    rig.write("t", 1)
    return rig


def state(rig: ServerRig) -> Any:
    found = rig.ok("GET", "/v0/topics/t?touch=false")
    return found["head_seq"], found["count"], found["config"]


CASES = [(endpoint, body, field) for endpoint, body in VALID for field in body]


@pytest.mark.parametrize(("endpoint", "body", "field"), CASES)
def test_each_field_takes_its_type_and_no_other(endpoint: tuple[str, str], body: dict[str, Any], field: str) -> None:
    """inv: 35"""
    rig = shared()
    before = state(rig)
    for wrong in wrong_for(body[field]):
        if field == "node" and endpoint == DIFF and (wrong == [] or isinstance(wrong, str)):
            continue
        if field == "match" and isinstance(wrong, str):
            continue
        if field == "config" and wrong == {}:
            continue
        assert rig.code(*endpoint, body | {field: wrong}) == (400, "invalid_request"), (field, wrong)
    if field not in NULLABLE:
        assert rig.code(*endpoint, body | {field: None}) == (400, "invalid_request")
    assert state(rig) == before


@pytest.mark.parametrize("field", RECORD)
def test_each_field_of_a_record_takes_its_type_and_no_other(field: str) -> None:
    """inv: 19"""
    rig = shared()
    before = state(rig)
    if field != "data":
        for wrong in wrong_for(RECORD[field]):
            if wrong != {}:
                assert rig.code(*WRITE, {"records": [RECORD | {field: wrong}]}) == (400, "invalid_request")
    without = {name: value for name, value in RECORD.items() if name != field}
    if field == "data":
        assert rig.code(*WRITE, {"records": [without]}) == (400, "invalid_request")
    assert state(rig) == before


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize(
    "raw",
    [
        b"[]",
        b"1",
        b"null",
        b'"x"',
        b"{",
        b"{}x",
        b"{}{}",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":"\\ud800"}',
        b'{"a":"\\udc00\\ud800"}',
        b'{"a":"\xff"}',
        b'{"a":01}',
        b'{"a":+1}',
        b'{"a":.5}',
        b'{"a":1.}',
        b"{'a':1}",
        b'{"a":1,}',
        b'{"a":"\n"}',
        b"\xef\xbb\xbf{}",
        b'{"a":' + b"[" * 200 + b"]" * 200 + b"}",
        b'{"a":' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
        b"[" * 100_000,
        b"\x00",
        b" ",
    ],
)
def test_what_is_no_json_object_is_400(endpoint: tuple[str, str], raw: bytes) -> None:
    rig = shared()
    before = state(rig)
    assert rig.code(*endpoint, raw=raw) == (400, "invalid_request")
    assert state(rig) == before


SCALARS = (
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats(allow_nan=False) | st.text(max_size=8)
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner))
FIELDS = st.sampled_from(sorted({field for _, body in VALID for field in body} | set(RECORD) | {"from_ts", "zz"}))


@given(st.sampled_from(ENDPOINTS), st.dictionaries(FIELDS, VALUES, max_size=5))
def test_any_object_is_answered_and_never_with_500(endpoint: tuple[str, str], body: dict[str, Any]) -> None:
    rig = shared()
    body.pop("wait_ms", None)
    try:
        raw = json.encode(body)
    except (UnicodeEncodeError, OverflowError):
        return
    status, answer = rig.ask(*endpoint, raw=raw)
    assert status in (200, 201, 400, 409, 422), (status, answer)
    assert ("error" in answer) == (status >= 400)


@given(st.sampled_from(ENDPOINTS), st.binary(max_size=40))
def test_any_bytes_are_answered_and_never_with_500(endpoint: tuple[str, str], raw: bytes) -> None:
    status, answer = shared().ask(*endpoint, raw=raw, headers={"content-type": "application/json"})
    assert status in (200, 400), (status, answer)


@given(VALUES)
def test_data_comes_back_as_the_value_it_was(value: Any) -> None:
    rig = shared()
    try:
        raw = json.encode({"records": [{"data": value}]})
    except (UnicodeEncodeError, OverflowError):
        return
    seq = rig.ok(*WRITE, raw=raw)["first_seq"]
    assert rig.diff("t", seq - 1)["records"][0]["data"] == json.decode(json.encode(value))
