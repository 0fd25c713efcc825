"""Single calls, gathered: what goes together, and what each caller gets."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from driftq.client.workers import batched_settlement as gathering
from driftq.client.workers.batched_settlement import Gathering


def test_what_finishes_together_goes_together_and_each_gets_its_own_answer() -> None:
    sent: list[list[int]] = []

    async def send(items: list[int]) -> list[bool]:
        sent.append(items)
        return [item % 3 != 0 for item in items]

    async def use() -> list[bool]:
        gathering = Gathering(send)
        return await asyncio.gather(*(gathering.call(n) for n in range(7)))

    assert asyncio.run(use()) == [False, True, True, False, True, True, False]
    assert sent == [[0, 1, 2, 3, 4, 5, 6]]


def _with_one_on_its_way(then: Callable[[Gathering[int, bool], asyncio.Event], Awaitable[None]]) -> list[list[int]]:
    """What is sent: item 0 first, which is answered when the event is set, and all that `then` settles."""
    sent: list[list[int]] = []

    async def use() -> None:
        answered, begun = asyncio.Event(), asyncio.Event()

        async def send(items: list[int]) -> list[bool]:
            sent.append(items)
            begun.set()
            if items == [0]:
                await answered.wait()
            return [True] * len(items)

        gathering = Gathering(send)
        first = asyncio.create_task(gathering.call(0))
        await begun.wait()
        await then(gathering, answered)
        answered.set()
        assert await first

    asyncio.run(use())
    return sent


def test_an_answer_sends_what_was_gathered_meanwhile() -> None:
    async def then(gathering: Gathering[int, bool], answered: asyncio.Event) -> None:
        calls = [asyncio.create_task(gathering.call(n)) for n in (1, 2)]
        await asyncio.sleep(0)
        answered.set()
        assert await asyncio.gather(*calls) == [True, True]

    assert _with_one_on_its_way(then) == [[0], [1, 2]]


def test_nothing_waits_longer_than_two_milliseconds_for_an_answer_of_others() -> None:
    async def then(gathering: Gathering[int, bool], _: asyncio.Event) -> None:
        assert await gathering.call(1)

    assert _with_one_on_its_way(then) == [[0], [1]]


def test_nothing_waits_when_nothing_more_is_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_GATHER_S", 3600.0)

    async def then(gathering: Gathering[int, bool], answered: asyncio.Event) -> None:
        calls = [asyncio.create_task(gathering.call(n)) for n in (1, 2)]
        await asyncio.sleep(0)
        gathering.hurry()
        gathering.hurry()
        assert await asyncio.gather(*calls) == [True, True]
        assert not answered.is_set()
        gathering.hurry()

    assert _with_one_on_its_way(then) == [[0], [1, 2]]


def test_a_hundred_do_not_wait() -> None:
    async def then(gathering: Gathering[int, bool], answered: asyncio.Event) -> None:
        calls = [asyncio.create_task(gathering.call(n)) for n in range(1, 131)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        answered.set()
        await asyncio.gather(*calls)

    sent = _with_one_on_its_way(then)
    assert [len(items) for items in sent] == [1, 100, 30]
    assert [item for items in sent for item in items] == list(range(131))


def test_a_request_that_fails_fails_those_that_it_was_for() -> None:
    async def send(items: list[int]) -> list[bool]:
        if 1 in items:
            raise ConnectionError("gone")
        return [True] * len(items)

    async def use() -> None:
        gathering = Gathering(send)
        failed = await asyncio.gather(gathering.call(1), gathering.call(2), return_exceptions=True)
        assert [type(error) for error in failed] == [ConnectionError, ConnectionError]
        assert await gathering.call(3)

    asyncio.run(use())


def test_a_caller_that_goes_away_does_not_disturb_the_others() -> None:
    async def send(items: list[int]) -> list[bool]:
        await asyncio.sleep(0)
        return [True] * len(items)

    async def use() -> None:
        gathering = Gathering(send)
        gone, there = asyncio.create_task(gathering.call(1)), asyncio.create_task(gathering.call(2))
        await asyncio.sleep(0)
        gone.cancel()
        assert await there
        with pytest.raises(asyncio.CancelledError):
            await gone

    asyncio.run(use())
