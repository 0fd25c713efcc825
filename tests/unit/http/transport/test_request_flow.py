"""A connection's own refusals have the form of the API that was meant."""

import pytest
from msgspec import json

from driftq.http.reply import encode_head
from driftq.http.transport.request_flow import refused
from driftq.http.v1.replies import NO_CONTENT


@pytest.mark.parametrize("target", [b"/v1/healthz?pad=xx", b"/v1", b"/metrics"])
@pytest.mark.parametrize("status", [400, 408, 414, 431])
def test_the_brokers_has_its_code(target: bytes, status: int) -> None:
    reply = refused(target, "too long", status)
    assert (reply.status, reply.plain) == (status, True)
    assert json.decode(reply.body) == {"error": "INVALID_ARGUMENT", "message": "too long"}


@pytest.mark.parametrize("target", [b"", b"/v0/topics/a", b"/healthz", b"/a"])
def test_all_others_are_envelopes(target: bytes) -> None:
    reply = refused(target, "too long", 414)
    assert reply.status == 414
    assert json.decode(reply.body)["error"]["code"] == "invalid_request"


def test_a_reply_without_content_says_nothing_about_one() -> None:
    head = encode_head(NO_CONTENT, 0, request_id=b"mine", keep_alive=True, old=False)
    assert head == b"HTTP/1.1 204 No Content\r\nx-request-id: mine\r\n\r\n"
