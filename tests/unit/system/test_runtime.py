"""The asyncio runtime and its threads, and the answer that may still be on its way."""

import asyncio
import queue
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import TypeVar

import pytest
import uvloop

from driftq.system.runtime import AsyncioRuntime, Pending, Runtime, ThreadWorker

T = TypeVar("T")
PATIENCE_S = 30


def _run(story: Coroutine[object, object, T]) -> T:
    return asyncio.run(asyncio.wait_for(story, PATIENCE_S))


def _as_protocol(runtime: AsyncioRuntime) -> Runtime:
    return runtime


class _Gate:
    """A handle that tells of each batch, and waits in the first until it is let go."""

    def __init__(self, delays_s: list[float | None] | None = None) -> None:
        self.batches: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        self.go = threading.Event()
        self._delays_s = delays_s or []

    def __call__(self, jobs: list[int]) -> float | None:
        self.batches.put(jobs)
        assert self.go.wait(PATIENCE_S)
        return self._delays_s.pop(0) if self._delays_s else None

    def next(self) -> list[int]:
        return self.batches.get(timeout=PATIENCE_S)


# --- worker -------------------------------------------------------------------------------------------------------


def test_jobs_that_pile_up_while_the_device_is_busy_are_done_together() -> None:
    gate = _Gate()
    worker = ThreadWorker("wal", gate)
    worker.put(1)
    assert gate.next() == [1]
    for job in (2, 3, 4):
        worker.put(job)
    gate.go.set()
    assert gate.next() == [2, 3, 4]
    worker.close()


def test_closing_does_what_is_queued_and_ends_the_thread() -> None:
    gate = _Gate()
    worker = ThreadWorker("wal-drained", gate)
    worker.put(1)
    assert gate.next() == [1]
    worker.put(2)
    worker.put(3)
    closing = threading.Thread(target=worker.close)
    closing.start()
    gate.go.set()
    closing.join(PATIENCE_S)
    assert gate.next() == [2, 3]
    assert gate.batches.empty()
    assert "wal-drained" not in {thread.name for thread in threading.enumerate()}


def test_closing_an_idle_worker_calls_nothing() -> None:
    gate = _Gate()
    ThreadWorker("wal", gate).close()
    assert gate.batches.empty()


def test_a_worker_that_asks_for_it_is_called_again_with_nothing() -> None:
    gate = _Gate(delays_s=[0.001, 0.001, None])
    gate.go.set()
    worker = ThreadWorker("wal", gate)
    worker.put(1)
    assert [gate.next(), gate.next(), gate.next()] == [[1], [], []]
    worker.close()
    assert gate.batches.empty()


def test_a_job_does_not_wait_for_the_delay() -> None:
    gate = _Gate(delays_s=[10.0 * PATIENCE_S])
    gate.go.set()
    worker = ThreadWorker("wal", gate)
    worker.put(1)
    assert gate.next() == [1]
    worker.put(2)
    assert gate.next() == [2]
    worker.close()


# --- loop ---------------------------------------------------------------------------------------------------------


def test_a_worker_that_waits_holds_nothing_of_its_last_job() -> None:
    class Job:
        """Something that can be seen to go."""

    gone = threading.Event()
    worker: ThreadWorker[Job] = ThreadWorker("w", lambda _: None)
    job = Job()
    weakref.finalize(job, gone.set)
    worker.put(job)
    del job
    assert gone.wait(PATIENCE_S)
    worker.close()


def test_soon_and_from_thread_run_on_the_loop_in_order() -> None:
    async def story() -> list[str]:
        loop = asyncio.get_running_loop()
        runtime = _as_protocol(AsyncioRuntime(loop))
        seen: list[str] = []
        done = asyncio.Event()
        runtime.soon(lambda: seen.append("soon"))

        def elsewhere() -> None:
            runtime.from_thread(lambda: seen.append("thread"))
            runtime.from_thread(done.set)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        seen.append("running")
        await done.wait()
        thread.join()
        return seen

    assert _run(story()) == ["running", "soon", "thread"]


def test_a_timer_fires_unless_it_is_cancelled() -> None:
    async def story() -> list[str]:
        runtime = AsyncioRuntime(asyncio.get_running_loop())
        seen: list[str] = []
        done = asyncio.Event()
        runtime.later(1, lambda: seen.append("cancelled")).cancel()
        runtime.later(2, lambda: seen.append("fired"))
        runtime.later(3, done.set)
        await done.wait()
        return seen

    assert _run(story()) == ["fired"]


def test_a_worker_answers_through_the_loop() -> None:
    async def story() -> list[int]:
        runtime = AsyncioRuntime(asyncio.get_running_loop())
        pending: Pending[list[int]] = Pending()

        def handle(jobs: list[int]) -> None:
            runtime.from_thread(lambda: pending.resolve(jobs))

        worker = runtime.worker("wal", handle)
        worker.put(1)
        answer = await runtime.future(pending)
        worker.close()
        return answer

    assert _run(story()) == [1]


def test_a_thread_that_outlives_the_loop_talks_to_nobody() -> None:
    loop = asyncio.new_event_loop()
    runtime = AsyncioRuntime(loop)
    loop.close()
    runtime.from_thread(lambda: None)


def test_another_refusal_of_the_loop_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.new_event_loop()

    def refuse(callback: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(loop, "call_soon_threadsafe", refuse)
    with pytest.raises(RuntimeError, match="no"):
        AsyncioRuntime(loop).from_thread(lambda: None)
    loop.close()


# --- pending ------------------------------------------------------------------------------------------------------


def test_a_pending_answer_tells_those_who_wait_in_order() -> None:
    pending: Pending[int] = Pending()
    seen: list[str] = []
    pending.then(lambda done: seen.append(f"first {done.result()}"))
    pending.then(lambda done: seen.append(f"second {done.result()}"))
    pending.resolve(7)
    pending.then(lambda done: seen.append(f"late {done.result()}"))
    assert seen == ["first 7", "second 7", "late 7"]


def test_a_failed_answer_raises_its_error() -> None:
    pending: Pending[int] = Pending()
    pending.fail(ValueError("no space"))
    with pytest.raises(ValueError, match="no space"):
        pending.result()


def test_an_answer_is_given_once_and_not_asked_for_early() -> None:
    pending: Pending[int] = Pending()
    with pytest.raises(AssertionError, match="not settled yet"):
        pending.result()
    pending.resolve(1)
    with pytest.raises(AssertionError):
        pending.resolve(2)
    with pytest.raises(AssertionError):
        pending.fail(ValueError())


def test_a_future_carries_value_and_error() -> None:
    async def story() -> int:
        runtime = AsyncioRuntime(asyncio.get_running_loop())
        good: Pending[int] = Pending()
        bad: Pending[int] = Pending()
        runtime.soon(lambda: good.resolve(7))
        runtime.soon(lambda: bad.fail(ValueError("no space")))
        with pytest.raises(ValueError, match="no space"):
            await runtime.future(bad)
        return await runtime.future(good)

    assert _run(story()) == 7


def test_an_answer_nobody_waits_for_any_more_is_dropped() -> None:
    async def story() -> bool:
        runtime = AsyncioRuntime(asyncio.get_running_loop())
        pending: Pending[int] = Pending()
        future = runtime.future(pending)
        future.cancel()
        pending.resolve(7)
        return future.cancelled()

    assert _run(story())


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_timer_never_ends_early(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """uvloop rounds the present down to a millisecond; a caller that waits 800 ms must not be answered after 799.4."""

    async def story() -> list[float]:
        runtime = AsyncioRuntime(asyncio.get_running_loop())
        early_ms = []
        for turn in range(100):
            busy_until = time.perf_counter() + turn * 1e-5
            while time.perf_counter() < busy_until:
                pass  # so that timers begin at every part of a millisecond
            done = asyncio.Event()
            began = time.monotonic()
            runtime.later(2, done.set)
            await done.wait()
            early_ms.append(2 - (time.monotonic() - began) * 1000)
        return early_ms

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert max(runner.run(asyncio.wait_for(story(), PATIENCE_S))) <= 0
