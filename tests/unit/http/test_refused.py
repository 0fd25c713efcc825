"""A connection's own refusals have the form of the API that was meant."""

import pytest
from msgspec import json

from driftq.http.refused import refused
from driftq.http.reply import encode_head
from driftq.http.v1.form import NO_CONTENT


@pytest.mark.parametrize("target", [b"/v1/healthz?pad=xx", b"/v1", b"/metrics"])
@pytest.mark.parametrize("status", [400, 408, 414, 431])
def test_the_brokers_has_its_code_and_the_id_of_the_request(target: bytes, status: int) -> None:
    """inv1: 5."""
    reply = refused(target, [(b"x-request-id", b" mine ")], "too long", status)
    assert (reply.status, dict(reply.headers)) == (status, {b"x-request-id": b"mine"})
    assert json.decode(reply.body) == {"error": "INVALID_ARGUMENT", "message": "too long"}
    fresh = dict(refused(target, [], "too long", status).headers)[b"x-request-id"]
    assert len(fresh) == 24


@pytest.mark.parametrize("target", [b"", b"/v0/topics/a", b"/healthz", b"/a"])
def test_all_others_are_envelopes(target: bytes) -> None:
    reply = refused(target, [], "too long", 414)
    assert reply.status == 414
    assert json.decode(reply.body)["error"]["code"] == "invalid_request"


def test_a_reply_without_content_says_nothing_about_one() -> None:
    assert encode_head(NO_CONTENT, 0, keep_alive=True, old=False) == b"HTTP/1.1 204 No Content\r\n\r\n"
