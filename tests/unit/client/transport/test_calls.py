"""One call: what is sent, what is made again and when, and what its answer is."""

import pytest
from msgspec import Struct

from driftq.client import Client
from driftq.client.errors import (
    ApiError,
    BadRequestError,
    LeaseLostError,
    ProtocolError,
    ServerError,
    ThrottledError,
    TransportError,
    UnavailableError,
)
from driftq.client.transport.calls import path_of, query_of
from driftq.client.transport.plan import Request
from driftq.client.transport.retry import Repeat
from driftq.model.v0_answers import Listing
from tests.unit.client.script import CUT, UNREACHED, Script, calls, refused, reply


class _Answer(Struct):
    count: int


def test_a_success_is_decoded_and_nothing_is_asked_twice() -> None:
    script = Script(reply(200, {"count": 3, "unknown": True}))
    assert script.run(calls().json("GET", "/x", _Answer)) == _Answer(3)
    assert len(script.asked) == 1
    assert not script.pauses


def test_members_that_are_none_are_not_sent() -> None:
    script = Script(reply(200, {"count": 3}))
    script.run(calls().json("POST", "/x", _Answer, query={"a": None, "b": True, "c": 5}, body={"d": None, "e": 0}))
    assert script.asked[0].query == {"b": "true", "c": "5"}
    assert script.bodies() == [{"e": 0}]


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 507])
def test_the_documented_statuses_are_retried_three_times(status: int) -> None:
    script = Script(*[refused(status, "x")] * 3, reply(200, {"count": 1}))
    assert script.run(calls().json("GET", "/x", _Answer)) == _Answer(1)
    assert len(script.pauses) == 3
    assert script.pauses[0] < script.pauses[1] < script.pauses[2] <= 0.4


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422])
def test_what_the_caller_did_wrong_is_never_retried(status: int) -> None:
    script = Script(refused(status, "x"))
    with pytest.raises(ApiError) as caught:
        script.run(calls().json("GET", "/x", _Answer))
    assert caught.value.status == status
    assert not script.pauses


def test_when_no_tries_are_left_the_last_error_is_raised() -> None:
    script = Script(*[refused(503, "not_ready")] * 3, refused(500, "internal"))
    with pytest.raises(ServerError, match="500 internal"):
        script.run(calls().json("GET", "/x", _Answer))


@pytest.mark.parametrize(("given", "seconds"), [({"retry_after": "7"}, 7.0), ({}, None)])
def test_the_server_says_how_long_to_wait(given: dict[str, str], seconds: float | None) -> None:
    script = Script(refused(429, "throttled", **given), reply(200, {"count": 1}))
    script.run(calls().json("GET", "/x", _Answer))
    assert (script.pauses == [seconds]) if seconds is not None else (0 < script.pauses[0] <= 0.1)


def test_milliseconds_in_the_body_are_finer_than_the_header() -> None:
    body = {"error": "RESOURCE_EXHAUSTED", "message": "full", "retry_after_ms": 40, "limit": "partition_buffer_full"}
    script = Script(reply(429, body, retry_after="1"), reply(200, {"count": 1}))
    script.run(calls().json("POST", "/x", _Answer, body={}))
    assert script.pauses == [0.04]


@pytest.mark.parametrize(("patience_s", "asked"), [(60.0, "61"), (5.0, "6"), (60.0, "3600")])
def test_who_is_asked_to_wait_too_long_is_told_at_once(patience_s: float, asked: str) -> None:
    script = Script(refused(503, "not_ready", retry_after=asked))
    with pytest.raises(UnavailableError) as caught:
        script.run(calls(patience_s=patience_s).json("GET", "/x", _Answer))
    assert caught.value.retry_after == float(asked)
    assert not script.pauses


def test_a_client_waits_no_longer_than_its_timeout_and_never_over_a_minute() -> None:
    for timeout, patience_s in ((5.0, 5.0), (30.0, 30.0), (600.0, 60.0)):
        with Client("http://u", timeout=timeout) as client:
            assert client._calls.patience_s == patience_s


def test_a_stream_that_is_asked_to_wait_long_waits_as_long_as_a_call_would() -> None:
    assert calls(patience_s=5.0).pause(0, ThrottledError(429, "throttled", "no", retry_after=3600.0)).seconds == 5.0


def test_a_date_in_retry_after_is_understood() -> None:
    script = Script(refused(503, "not_ready", retry_after="Mon, 01 Jan 2001 00:00:00 GMT"), reply(200, {"count": 1}))
    script.run(calls().json("GET", "/x", _Answer))
    assert script.pauses == [0.0]


def test_a_call_that_may_take_effect_twice_is_not_repeated_when_nobody_knows() -> None:
    for outcome in (CUT, refused(500, "internal"), reply(503, {"error": "UNAVAILABLE", "message": "stopped"})):
        script = Script(outcome)
        with pytest.raises((TransportError, ServerError)):
            script.run(calls().response(Request("POST", "/x"), Repeat.AGAIN))
        assert not script.pauses


def test_what_the_server_has_not_touched_is_always_repeated() -> None:
    untouched = (UNREACHED, refused(429, "throttled"), refused(503, "shutting_down"), reply(200))
    script = Script(*untouched)
    assert script.run(calls().response(Request("POST", "/x"), Repeat.AGAIN)).status == 200
    assert len(script.asked) == 4
    full = Script(refused(507, "disk_full"), reply(200))
    assert full.run(calls().response(Request("POST", "/x"), Repeat.AGAIN)).status == 200


def test_a_key_that_is_in_flight_is_our_own_first_try() -> None:
    in_flight = reply(400, {"error": "INVALID_ARGUMENT", "message": "idempotency: key already in-flight"})
    script = Script(CUT, in_flight, reply(200, {"count": 1}))
    assert script.run(calls().json("POST", "/x", _Answer, body={})) == _Answer(1)


def test_without_retries_there_are_none_and_no_keys_either() -> None:
    script = Script(CUT)
    with pytest.raises(TransportError):
        script.run(calls(0).json("GET", "/x", _Answer))
    assert calls(0).fresh_key() is None


def test_both_dialects_say_no_in_the_same_errors() -> None:
    old = Script(reply(409, {"error": "FAILED_PRECONDITION", "message": "not owner"}))
    with pytest.raises(LeaseLostError) as broker:
        old.run(calls().json("POST", "/v1/ack", _Answer, body={}))
    assert (broker.value.code, broker.value.message) == ("FAILED_PRECONDITION", "not owner")
    new = Script(reply(400, {"error": {"code": "batch_too_large", "message": "no", "detail": {"max": 5}}}))
    with pytest.raises(BadRequestError) as topics:
        new.run(calls().json("POST", "/v0/topics/a", _Answer, body={}))
    assert (topics.value.code, topics.value.detail) == ("batch_too_large", {"max": 5})


def test_an_answer_of_somebody_else_is_told_as_such() -> None:
    with pytest.raises(ProtocolError, match="is the address right"):
        Script(reply(200, ["no", "object"])).run(calls().json("GET", "/x", _Answer))
    script = Script(*[reply(429, "too many")] * 4)
    with pytest.raises(ThrottledError, match="too many"):
        script.run(calls().json("GET", "/x", _Answer))


def test_pages_follow_the_cursor_to_the_end() -> None:
    class Page(Listing):
        rows: list[int]

    took = {"performance": {"server_total_ms": 0.1}}
    script = Script(reply(200, {"rows": [1, 2], "next_cursor": "c", **took}), reply(200, {"rows": [3], **took}))
    assert script.items(calls().pages("/x", Page, lambda page: page.rows, {"prefix": "p"})) == [1, 2, 3]
    assert [one.query for one in script.asked] == [{"prefix": "p"}, {"prefix": "p", "cursor": "c"}]


def test_names_are_encoded_where_they_need_to_be() -> None:
    assert path_of("v0", "topics", "a/b c?") == "/v0/topics/a%2Fb%20c%3F"
    assert path_of("v0", "routers", "a->b") == "/v0/routers/a->b"
    assert query_of({"no": False}) == {"no": "false"}
