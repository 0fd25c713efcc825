"""Every error of ours has a status."""

import pytest
from msgspec import json

from driftq import errors
from driftq.http.v0.errors import error_reply


def kinds(base: type[errors.DriftQError]) -> list[type[errors.DriftQError]]:
    return [base, *(kind for below in base.__subclasses__() for kind in kinds(below))]


_ABOVE = ("driftq.cli.", "driftq.cli.demo.", "driftq.pipeline.")
"""Programs that talk to a server have errors of their own, which no server answers with."""

REACHABLE = sorted(
    {
        kind.code
        for kind in kinds(errors.DriftQError)
        if not issubclass(kind, errors.StartError) and not kind.__module__.startswith(_ABOVE)
    }
)


@pytest.mark.parametrize("code", REACHABLE)
def test_every_error_that_can_reach_a_caller_has_its_envelope(code: str) -> None:
    kind = next(kind for kind in kinds(errors.DriftQError) if kind.code == code)
    error = kind.__new__(kind)
    errors.DriftQError.__init__(error, "what happened", detail={"max": 3}, retry_after_ms=20)
    reply = error_reply(error)
    assert 400 <= reply.status < 600
    assert json.decode(reply.body) == {"error": {"code": code, "message": "what happened", "detail": {"max": 3}}}
    challenge = ((b"www-authenticate", b"Bearer"),) if code == "unauthorized" else ()
    assert reply.headers == ((b"retry-after", b"1"), *challenge)


def test_what_is_not_there_is_left_out() -> None:
    reply = error_reply(errors.InvalidRequestError("no"))
    assert (reply.status, reply.headers) == (400, ())
    assert reply.body == b'{"error":{"code":"invalid_request","message":"no"}}'
