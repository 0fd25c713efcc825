"""`client/workers/item_handling` with a source of its own: how much is taken ahead, what is acked when, and what a stop
does."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from driftq.client.errors import LeaseLostError
from driftq.client.workers.handler_runners import LoopRunner
from driftq.client.workers.held_work import EffectKey, Retry
from driftq.client.workers.item_handling import Handling, WorkerStats
from driftq.client.workers.work_sources import Effects


class _Held:
    """Notes what becomes of it; an ack is answered when the test says so."""

    def __init__(self, number: int, *, may_return: bool = True, ack_commits: bool = False) -> None:
        self.item = number
        self.ack_commits = ack_commits
        self.place = (0, number)
        self.work = EffectKey(str(number))
        self.may_return = may_return
        self.became: list[str] = []
        self.settled: Callable[[BaseException | None], object] = lambda _: None

    def adopt(self, again: "_Held") -> None:
        self.became.append(f"adopted {again.item}")

    def ack_then(self, settled: Callable[[BaseException | None], object]) -> None:
        self.became.append("ack")
        self.settled = settled

    async def nack(self, reason: str, after_s: float | None) -> None:
        self.became.append(f"nack {reason} {after_s}")

    async def release(self) -> None:
        self.became.append("back")

    async def give_up(self, reason: str) -> None:
        self.became.append(f"dead {reason}")


class _Source:
    effects: Effects | None = None
    quit_s = 0.0
    rounds = 2
    hurried = 0

    async def extend(self, held: list[Any], lease_ms: int) -> None:
        raise NotImplementedError

    def hurry(self) -> None:
        self.hurried += 1

    async def leave(self) -> None:
        raise NotImplementedError

    def taken(self, room: Any, lease_ms: int) -> Any:
        raise NotImplementedError


class _Effects(Effects):
    """Begins everything, and commits when the test says so."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.go = asyncio.Event()

    async def begin(self, work: EffectKey, lease_ms: int) -> bool:
        self.calls.append(f"begin {work.key}")
        return False

    async def commit(self, work: EffectKey, result: bytes, lease_ms: int) -> None:
        self.calls.append(f"commit {work.key} {result!r}")
        await self.go.wait()


def _handling(
    handle: Callable[[int], Awaitable[object]], concurrency: int, effects: Effects | None = None
) -> tuple[Handling[int], WorkerStats]:
    stats = WorkerStats()
    source = _Source()
    source.effects = effects
    handling: Handling[int] = Handling(source, stats, concurrency, 30_000)
    handling.run_by(LoopRunner(handle))
    return handling, stats


async def _turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_handlers_keep_to_their_slots_and_one_round_is_taken_ahead() -> None:
    async def use() -> None:
        running: set[int] = set()
        go = asyncio.Event()

        async def handle(number: int) -> None:
            running.add(number)
            await go.wait()

        handling, _ = _handling(handle, 2)
        assert await handling.room() == 4
        held = [_Held(number) for number in range(4)]
        for one in held:
            handling.take(one)
        await _turns()
        assert running == {0, 1}
        more = asyncio.create_task(handling.room())
        await _turns()
        assert not more.done()
        go.set()
        assert await more >= 1
        await _turns()
        assert running == {0, 1, 2, 3}
        await handling.close(0)

    asyncio.run(use())


def test_an_ack_follows_the_handler_and_counts_when_it_is_answered() -> None:
    async def use() -> None:
        go = asyncio.Event()

        async def handle(_: int) -> None:
            await go.wait()

        handling, stats = _handling(handle, 3)
        held = [_Held(number) for number in range(3)]
        for one in held:
            handling.take(one)
        await _turns()
        assert [one.became for one in held] == [[], [], []]
        go.set()
        await _turns()
        assert ([one.became for one in held], stats.acked) == ([["ack"]] * 3, 0)
        held[0].settled(None)
        held[1].settled(LeaseLostError(409, "lease_lost", "another has it"))
        held[2].settled(ConnectionError("gone"))
        assert (stats.acked, stats.lost) == (1, 2)
        await handling.drained(1.0)
        await handling.close(0)

    asyncio.run(use())


def test_another_delivery_of_what_is_being_handled_is_the_same_work() -> None:
    async def use() -> None:
        calls: list[int] = []
        go = asyncio.Event()

        async def handle(number: int) -> None:
            calls.append(number)
            await go.wait()

        handling, _ = _handling(handle, 2)
        first, again = _Held(7), _Held(7)
        handling.take(first)
        handling.take(again)
        await _turns()
        go.set()
        await _turns()
        assert (calls, first.became, again.became) == ([7], ["adopted 7", "ack"], [])
        third = _Held(7)
        handling.take(third)
        await _turns()
        assert calls == [7, 7]
        await handling.close(0)

    asyncio.run(use())


def test_a_stop_gives_back_what_is_ahead_and_handles_what_must_not_go_back() -> None:
    async def use() -> None:
        calls: list[int] = []
        go = asyncio.Event()

        async def handle(number: int) -> object:
            calls.append(number)
            await go.wait()
            return Retry(after=0.5, reason="later") if number == 0 else None

        handling, stats = _handling(handle, 1)
        held = [_Held(0), _Held(1), _Held(2, may_return=False)]
        for one in held:
            handling.take(one)
        await _turns()
        handling.stop()
        assert await handling.room() == 0
        await _turns()
        assert held[1].became == []
        handling.release_ahead()
        await _turns()
        assert (held[1].became, held[2].became) == (["back"], [])
        go.set()
        await _turns()
        assert held[2].became == ["ack"]
        draining = asyncio.create_task(handling.drained(10.0))
        await _turns()
        assert not draining.done()
        held[2].settled(None)
        await draining
        assert (calls, held[0].became) == ([0, 2], ["nack later 0.5"])
        assert (stats.acked, stats.retried, stats.lost) == (1, 1, 0)
        await handling.close(0)

    asyncio.run(use())


def test_a_handler_that_takes_longer_than_the_drain_is_cancelled_and_its_item_given_back() -> None:
    async def use() -> None:
        ended: list[str] = []

        async def handle(_: int) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        handling, stats = _handling(handle, 1)
        held = _Held(0)
        handling.take(held)
        await _turns()
        handling.stop()
        await handling.drained(0.0)
        await handling.close(5.0)
        assert (ended, held.became, stats.acked) == (["cancelled"], ["nack the handler was cancelled 0"], 0)

    asyncio.run(use())


def test_an_item_whose_handler_raises_a_cancellation_is_delivered_again_and_keeps_no_slot() -> None:
    async def use() -> None:
        async def handle(number: int) -> None:
            if number == 0:
                raise asyncio.CancelledError

        handling, _ = _handling(handle, 1)
        cancelled, next_ = _Held(0), _Held(1)
        handling.take(cancelled)
        handling.take(next_)
        await _turns(10)
        assert (cancelled.became, next_.became) == (["nack the handler was cancelled None"], ["ack"])

    asyncio.run(use())


def test_acks_are_hurried_when_nothing_is_left_to_handle() -> None:
    async def use() -> None:
        go = {number: asyncio.Event() for number in range(3)}

        async def handle(number: int) -> None:
            await go[number].wait()

        source = _Source()
        handling: Handling[int] = Handling(source, WorkerStats(), 2, 30_000)
        handling.run_by(LoopRunner(handle))
        for number in range(3):
            handling.take(_Held(number))
        for number, hurried in ((0, 0), (1, 0), (2, 1)):
            go[number].set()
            await _turns()
            assert (number, source.hurried) == (number, hurried)
        await handling.close(0)

    asyncio.run(use())


def test_a_commit_holds_no_slot_and_another_delivery_meanwhile_is_the_same_work() -> None:
    async def use() -> None:
        effects = _Effects()
        calls: list[int] = []

        async def handle(number: int) -> bytes:
            calls.append(number)
            return b"x"

        handling, stats = _handling(handle, 1, effects)
        first, second, again = _Held(1), _Held(2), _Held(1)
        handling.take(first)
        handling.take(second)
        await _turns(9)
        assert (calls, first.became, second.became) == ([1, 2], [], [])
        handling.take(again)
        await _turns()
        assert (calls, first.became) == ([1, 2], ["adopted 1"])
        effects.go.set()
        await _turns()
        assert (first.became, second.became, again.became) == (["adopted 1", "ack"], ["ack"], [])
        assert effects.calls == ["begin 1", "commit 1 b'x'", "begin 2", "commit 2 b'x'"]
        first.settled(None)
        second.settled(None)
        assert stats.acked == 2
        await handling.close(0)

    asyncio.run(use())


def test_an_ack_that_commits_the_key_is_enough_and_where_it_is_lost_the_commit_follows() -> None:
    async def use() -> None:
        effects = _Effects()
        effects.go.set()

        async def handle(number: int) -> bytes | None:
            return b"result" if number == 3 else None

        handling, stats = _handling(handle, 3, effects)
        held = [_Held(number, ack_commits=True) for number in (1, 2, 3)]
        for one in held:
            handling.take(one)
        await _turns(9)
        assert [one.became for one in held] == [["ack"]] * 3
        assert [call for call in effects.calls if "commit" in call] == ["commit 3 b'result'"]
        again = _Held(2)
        handling.take(again)
        lost = LeaseLostError(400, "x", "message is not in-flight")
        held[0].settled(None)
        held[1].settled(lost)
        held[2].settled(lost)
        await _turns()
        assert [call for call in effects.calls if "commit" in call] == ["commit 3 b'result'", "commit 2 b''"]
        assert (held[1].became, again.became) == (["ack", "adopted 2", "ack"], [])
        held[1].settled(None)
        await handling.drained(1.0)
        assert (stats.acked, stats.lost) == (2, 1)
        await handling.close(0)

    asyncio.run(use())
