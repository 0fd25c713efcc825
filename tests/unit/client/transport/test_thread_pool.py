"""`client/transport/thread_pool`: what is put comes back once, many at a time, and nothing begins after the close."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from driftq.client.transport.thread_pool import ThreadPool


def _with_thread_pool(count: int, function: Callable[[Any], Any], items: list[Any]) -> list[tuple[Any, Any]]:
    """What comes back, in its order."""

    async def use() -> list[tuple[Any, Any]]:
        came: list[tuple[Any, Any]] = []
        all_came = asyncio.Event()

        def done(item: Any, returned: Any) -> None:
            came.append((item, returned))
            if len(came) == len(items):
                all_came.set()

        thread_pool: ThreadPool[Any, Any] = ThreadPool(count, "test", function, done)
        try:
            for item in items:
                thread_pool.put(item)
            async with asyncio.timeout(10):
                await all_came.wait()
        finally:
            thread_pool.close()
        return came

    return asyncio.run(use())


def test_every_item_comes_back_once_with_what_the_function_returned() -> None:
    came = _with_thread_pool(4, lambda number: number * 2, list(range(1000)))
    assert sorted(came) == [(number, number * 2) for number in range(1000)]


def test_as_many_calls_run_at_the_same_time_as_there_are_threads() -> None:
    together = threading.Barrier(3)
    came = _with_thread_pool(3, lambda _: together.wait(10) >= 0, [1, 2, 3])
    assert sorted(came) == [(1, True), (2, True), (3, True)]


def test_what_the_function_raises_comes_back_and_its_thread_takes_the_next() -> None:
    def function(number: int) -> int:
        if number == 0:
            raise SystemExit("enough")
        return number

    (_, raised), second = _with_thread_pool(1, function, [0, 1])
    assert isinstance(raised, SystemExit)
    assert second == (1, 1)


def test_a_closed_crew_begins_no_call_and_its_threads_end() -> None:
    begun, go = threading.Event(), threading.Event()
    called: list[int] = []

    def function(number: int) -> None:
        called.append(number)
        begun.set()
        go.wait(10)

    async def use() -> list[threading.Thread]:
        thread_pool: ThreadPool[int, None] = ThreadPool(1, "closed-crew", function, lambda *_: None)
        thread_pool.put(1)
        thread_pool.put(2)
        await asyncio.to_thread(begun.wait, 10)
        thread_pool.close()
        return [thread for thread in threading.enumerate() if thread.name.startswith("closed-crew")]

    (thread,) = asyncio.run(use())
    go.set()
    thread.join(10)
    assert not thread.is_alive()
    assert called == [1]
