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


def test_a_value_is_mapped_when_it_is_known_and_an_error_is_passed_on() -> None:
    first: Pending[int] = Pending()
    doubled = first.mapped(lambda value: value * 2)
    assert not doubled.settled
    first.resolve(4)
    assert doubled.result() == 8
    assert first.mapped(str).result() == "4"
    failed: Pending[int] = Pending()
    failed.fail(InternalError("no"))
    assert failed.mapped(str).error is failed.error


def test_a_bug_in_the_mapping_ends_one_answer() -> None:
    commit: Pending[int] = Pending()
    answer = commit.mapped(lambda value: value // 0)
    others: list[int] = []
    commit.then(lambda done: others.append(done.result()))
    commit.resolve(1)
    assert isinstance(answer.error, ZeroDivisionError)
    assert others == [1]
