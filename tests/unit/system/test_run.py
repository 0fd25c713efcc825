"""Coroutines that await `Pending`s, stepped through without an event loop."""

import pytest

from driftq.errors import InternalError
from driftq.system.runtime import Pending, run


def test_a_coroutine_goes_on_when_what_it_awaits_is_settled() -> None:
    first: Pending[int] = Pending()
    second: Pending[int] = Pending()

    async def add() -> int:
        return await first + await second

    answer = run(add())
    first.resolve(1)
    assert not answer.settled
    second.resolve(2)
    assert answer.result() == 3


def test_one_that_awaits_nothing_unsettled_has_ended_on_return() -> None:
    done: Pending[int] = Pending()
    done.resolve(7)

    async def get() -> int:
        return await done

    assert run(get()).result() == 7


def test_an_error_reaches_the_coroutine_and_then_whoever_asked() -> None:
    failing: Pending[int] = Pending()
    seen: list[str] = []

    async def get() -> int:
        try:
            return await failing
        except InternalError as error:
            seen.append(error.message)
            raise

    answer = run(get())
    failing.fail(InternalError("lost"))
    assert seen == ["lost"]
    with pytest.raises(InternalError, match="lost"):
        answer.result()
