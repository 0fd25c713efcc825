"""Batches: what each entry gets, and which entries are sent again."""

from typing import Any

import pytest

from driftq.client.batch_calls import each
from driftq.client.errors import (
    ApiError,
    BadRequestError,
    ConflictError,
    LeaseLostError,
    ProtocolError,
    ServerError,
    ThrottledError,
    UnavailableError,
)
from driftq.client.transport.plan import Response
from driftq.client.transport.retry import Repeat
from driftq.model.v1_answers import EntryResult, EntryResults
from tests.unit.client.script import CUT, Script, calls, reply

ENTRIES = [{"n": number} for number in range(4)]
DONE = {"code": 204}


def failed(code: int, error: str = "X", message: str = "no", **more: Any) -> dict[str, Any]:
    return {"code": code, "error": error, "message": message, **more}


def answered(*results: dict[str, Any]) -> Response:
    return reply(200, {"results": results})


def ask(script: Script, *, count: int = 3, patience_s: float = 60.0, repeat: Repeat = Repeat.SAME) -> list[Any]:
    plan = each(
        calls(count, patience_s=patience_s), "/v1/x/batch", {"topic": "t"}, ENTRIES, EntryResults, repeat=repeat
    )
    return script.run(plan)


def test_each_entry_gets_its_result_or_its_error_in_order() -> None:
    script = Script(
        answered(DONE, failed(409, message="not owner"), failed(409, message="held by another"), failed(400))
    )
    first, second, third, fourth = ask(script)
    assert first == EntryResult(204)
    assert [type(one) for one in (second, third, fourth)] == [LeaseLostError, ConflictError, BadRequestError]
    assert (second.status, second.code, second.message) == (409, "X", "not owner")
    assert script.bodies() == [{"topic": "t", "entries": ENTRIES}]


def test_only_entries_that_failed_for_now_are_sent_again() -> None:
    script = Script(
        answered(DONE, failed(500), failed(400), failed(429, reason="overloaded", retry_after_ms=70, limit="x")),
        answered(failed(503), DONE),
        answered(DONE),
    )
    results = ask(script)
    assert [one.status if isinstance(one, ApiError) else one.code for one in results] == [204, 204, 400, 204]
    assert [body["entries"] for body in script.bodies()] == [ENTRIES, [ENTRIES[1], ENTRIES[3]], [ENTRIES[1]]]
    assert script.pauses[0] == 0.07
    assert [request.again for request in script.asked] == [False, True, True]


def test_after_the_last_try_an_entry_has_its_last_error() -> None:
    script = Script(answered(DONE, DONE, DONE, failed(500)), answered(failed(503)))
    *_, last = ask(script, count=1)
    assert type(last) is UnavailableError


def test_a_call_that_might_take_effect_twice_is_not_made_again() -> None:
    script = Script(answered(DONE, failed(500), failed(429), DONE), answered(DONE))
    results = ask(script, repeat=Repeat.AGAIN)
    assert [type(one) for one in results] == [EntryResult, ServerError, EntryResult, EntryResult]


def test_a_server_that_asks_for_more_patience_than_there_is_gets_no_second_try() -> None:
    script = Script(answered(DONE, DONE, DONE, failed(429, retry_after_ms=9000)))
    *_, last = ask(script, patience_s=5.0)
    assert type(last) is ThrottledError
    assert last.retry_after == 9.0


def test_a_batch_whose_answer_is_lost_is_sent_again_whole() -> None:
    script = Script(CUT, answered(DONE, DONE, DONE, DONE))
    assert ask(script) == [EntryResult(204)] * 4
    assert script.bodies() == [{"topic": "t", "entries": ENTRIES}] * 2


def test_too_few_results_are_not_an_answer() -> None:
    with pytest.raises(ProtocolError, match="the server returned 1 results for 4 entries"):
        ask(Script(answered(DONE)))


def test_nothing_is_asked_about_no_entries() -> None:
    script = Script()
    assert script.run(each(calls(), "/v1/x/batch", {}, [], EntryResults)) == []
    assert script.asked == []
