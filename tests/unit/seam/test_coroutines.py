"""A thread for coroutines of others: answers come to the loop, and one that hangs holds up nobody."""

import asyncio
import threading
from typing import Any

from driftq.seam.coroutines import LoopThread
from driftq.seam.runtime import AsyncioRuntime


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
