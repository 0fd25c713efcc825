"""A thread for coroutines of others: answers come to the loop, and one that hangs holds up nobody."""

import asyncio
import threading
from typing import Any

import pytest

from driftq.system.loop_thread import LoopThread
from driftq.system.runtime import AsyncioRuntime


def test_answers_errors_and_cancelled_ones() -> None:
    told: list[tuple[str, object, object]] = []
    cancelled = threading.Event()

    async def hang() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    async def answer() -> str:
        return threading.current_thread().name

    async def fail() -> None:
        raise RuntimeError("boom")

    async def talk() -> None:
        loop = asyncio.get_running_loop()
        thread = LoopThread(AsyncioRuntime(loop), "theirs")
        done = asyncio.Event()

        def ended(name: str) -> Any:
            def tell(value: object, error: BaseException | None) -> None:
                assert threading.current_thread() is threading.main_thread()
                told.append((name, value, error and str(error)))
                if len(told) == 2:
                    done.set()

            return tell

        cancel = thread.start(hang, ended("hang"))
        thread.start(answer, ended("answer"))
        thread.start(fail, ended("fail"))
        await asyncio.wait_for(done.wait(), 10)
        cancel()
        assert await loop.run_in_executor(None, cancelled.wait, 10)
        thread.start(hang, ended("closed"))
        thread.close()

    asyncio.run(talk())
    assert told == [("answer", "theirs", None), ("fail", None, "boom")]


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
@pytest.mark.parametrize("aside", [False, True])
def test_what_would_end_a_thread_is_an_answer_and_the_next_one_is_asked(
    raised: type[BaseException], aside: bool
) -> None:
    told: list[tuple[object, object]] = []

    async def end() -> None:
        raise raised

    async def end_aside() -> None:
        """In a task that nobody started but the code of others."""
        task = asyncio.get_running_loop().create_task(end())
        await asyncio.wait([task])
        task.result()

    async def answer() -> str:
        return "answer"

    async def talk() -> None:
        thread = LoopThread(AsyncioRuntime(asyncio.get_running_loop()), "theirs")
        for make in (end_aside if aside else end, answer):
            done = asyncio.Event()

            def tell(value: object, error: BaseException | None, done: asyncio.Event = done) -> None:
                told.append((value, error and type(error)))
                done.set()

            thread.start(make, tell)
            await asyncio.wait_for(done.wait(), 10)
        thread.close()

    asyncio.run(talk())
    assert told == [(None, raised), ("answer", None)]
