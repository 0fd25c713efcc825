"""Loops that call something again and again, the same for every client, and tell rate and CPU time of this process."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

Figures = dict[str, float]
WARM_UP = 208
CALLERS = 16
"""Threads or tasks that append at the same time."""
FILLING = "x" * 85


def _figures(calls: int, seconds: float, cpu_s: float) -> Figures:
    return {"per_s": calls / seconds, "cpu_us": cpu_s / calls * 1e6, "calls": calls + WARM_UP}


def one_by_one(call: Callable[[int], object], seconds: float) -> Figures:
    """Call in a loop."""
    for number in range(WARM_UP):
        call(number)
    calls = 0
    cpu_s, began = time.process_time(), time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        for _ in range(20):
            call(calls)
            calls += 1
    return _figures(calls, took, time.process_time() - cpu_s)


def in_threads(call: Callable[[int], object], threads: int, seconds: float) -> Figures:
    """Call from many threads at the same time."""
    counts = [0] * threads
    ready, go = threading.Barrier(threads + 1), threading.Event()
    ends = 0.0

    def loop(place: int) -> None:
        for number in range(WARM_UP // threads):
            call(number)
        ready.wait()
        go.wait()
        while time.perf_counter() < ends:
            call(counts[place])
            counts[place] += 1

    running = [threading.Thread(target=loop, args=(place,)) for place in range(threads)]
    for thread in running:
        thread.start()
    ready.wait()
    cpu_s, began = time.process_time(), time.perf_counter()
    ends = began + seconds
    go.set()
    for thread in running:
        thread.join()
    return _figures(sum(counts), time.perf_counter() - began, time.process_time() - cpu_s)


def in_tasks(
    call: Callable[[int], Awaitable[object]], tasks: int, seconds: float, close: Callable[[], Awaitable[object]]
) -> Coroutine[Any, Any, Figures]:
    """Call from many asyncio tasks at the same time; then close the client."""

    async def run() -> Figures:
        counts = [0] * tasks
        ends = 0.0

        async def loop(place: int) -> None:
            while time.perf_counter() < ends:
                await call(counts[place])
                counts[place] += 1

        for round_ in range(WARM_UP // tasks):
            await asyncio.gather(*(call(round_) for _ in range(tasks)))
        cpu_s, began = time.process_time(), time.perf_counter()
        ends = began + seconds
        await asyncio.gather(*(loop(place) for place in range(tasks)))
        found = _figures(sum(counts), time.perf_counter() - began, time.process_time() - cpu_s)
        await close()
        return found

    return run()


async def at_a_rate(call: Callable[[], Awaitable[object]], count: int, rate: float) -> None:
    """Begin so many calls, so many a second, whether those before have been answered or not."""
    began = time.perf_counter()
    calls: set[asyncio.Future[object]] = set()
    for number in range(count):
        delay_s = began + number / rate - time.perf_counter()
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        one = asyncio.ensure_future(call())
        calls.add(one)
        one.add_done_callback(calls.discard)
    await asyncio.gather(*calls)


def quantiles_ms(delays_ns: list[int]) -> Figures:
    """The median and the 99th percentile."""
    ordered = sorted(delays_ns)
    return {f"p{share}_ms": ordered[len(ordered) * share // 100] / 1e6 for share in (50, 99)}
