"""The manual runtime: order, time, holding back, and death."""

from collections.abc import Callable

import pytest

from driftq.system.runtime import Runtime
from driftq.testing import Crashed, ManualClock, ManualRuntime, ManualWorker


def _runtime(seed: int | None = None) -> ManualRuntime:
    return ManualRuntime(ManualClock(), seed)


def _as_protocol(runtime: ManualRuntime) -> Runtime:
    return runtime


def _noting(seen: list[str], word: str) -> Callable[[], None]:
    return lambda: seen.append(word)


def test_nothing_runs_by_itself_and_callbacks_run_in_order() -> None:
    runtime = _runtime()
    as_protocol = _as_protocol(runtime)
    seen: list[str] = []
    as_protocol.soon(_noting(seen, "a"))
    as_protocol.from_thread(_noting(seen, "b"))
    as_protocol.soon(_noting(seen, "c"))
    assert seen == []
    runtime.run_until_idle()
    assert seen == ["a", "b", "c"]


def test_a_turn_runs_what_is_queued_and_not_what_that_queues() -> None:
    runtime = _runtime()
    seen: list[str] = []

    def first() -> None:
        seen.append("first")
        runtime.soon(_noting(seen, "second"))

    runtime.soon(first)
    runtime.turn()
    assert seen == ["first"]
    runtime.turn()
    assert seen == ["first", "second"]


def test_running_the_loop_only_leaves_jobs_with_their_workers() -> None:
    runtime = _runtime()
    handled: list[list[int]] = []
    worker = runtime.worker("wal", handled.append)
    runtime.soon(lambda: runtime.soon(lambda: worker.put(1)))
    runtime.run_loop_only()
    assert (handled, worker.queued()) == ([], 1)
    runtime.run_until_idle()
    assert (handled, worker.queued()) == ([[1]], 0)


def test_a_worker_takes_all_that_waits_at_once() -> None:
    runtime = _runtime()
    handled: list[list[int]] = []
    worker = runtime.worker("wal", handled.append)
    for job in range(3):
        worker.put(job)
    runtime.run_until_idle()
    assert handled == [[0, 1, 2]]


def test_without_a_seed_the_loop_goes_first_then_workers_by_age() -> None:
    runtime = _runtime()
    seen: list[str] = []
    older: ManualWorker[int] = runtime.worker("z", lambda jobs: seen.append("older"))
    younger: ManualWorker[int] = runtime.worker("a", lambda jobs: seen.append("younger"))
    younger.put(1)
    older.put(1)
    runtime.soon(_noting(seen, "loop"))
    runtime.run_until_idle()
    assert seen == ["loop", "older", "younger"]


def test_a_held_worker_waits_until_it_is_released() -> None:
    runtime = _runtime()
    handled: list[list[int]] = []
    runtime.hold("wal")
    worker = runtime.worker("wal", handled.append)
    worker.put(1)
    runtime.run_until_idle()
    assert handled == []
    worker.put(2)
    runtime.release("wal")
    runtime.run_until_idle()
    assert handled == [[1, 2]]


def test_a_timer_fires_when_the_clock_has_passed_it() -> None:
    runtime = _runtime()
    seen: list[str] = []
    runtime.later(10, _noting(seen, "ten"))
    runtime.later(5, _noting(seen, "five"))
    runtime.later(5, _noting(seen, "five again"))
    runtime.clock.advance(9)
    runtime.run_until_idle()
    assert seen == ["five", "five again"]
    runtime.clock.advance(1)
    runtime.run_until_idle()
    assert seen == ["five", "five again", "ten"]


def test_advance_stops_at_every_timer_on_the_way() -> None:
    runtime = _runtime()
    moments: list[int] = []

    def tick() -> None:
        moments.append(runtime.clock.monotonic_ns() // 1_000_000)
        runtime.later(30, tick)

    runtime.later(30, tick)
    runtime.advance(100)
    assert moments == [30, 60, 90]
    assert runtime.clock.monotonic_ns() == 100_000_000


def test_a_cancelled_timer_never_fires_even_when_it_is_due() -> None:
    runtime = _runtime()
    seen: list[str] = []
    later = runtime.later(5, _noting(seen, "later"))
    also_due = runtime.later(5, _noting(seen, "also due"))
    later.cancel()
    runtime.soon(also_due.cancel)
    runtime.clock.advance(5)
    runtime.run_until_idle()
    assert seen == []


def test_a_worker_is_called_with_nothing_once_its_delay_has_passed() -> None:
    runtime = _runtime()
    calls: list[tuple[int, list[str]]] = []

    def handle(jobs: list[str]) -> float | None:
        calls.append((runtime.clock.monotonic_ns() // 1_000, jobs))
        return 0.0255 if jobs else None

    worker = runtime.worker("wal", handle)
    runtime.advance(100)
    worker.put("a")
    runtime.advance(20)
    worker.put("b")
    runtime.advance(100)
    # The job at 120 ms starts the delay anew, as it does in the thread.
    assert calls == [(100_000, ["a"]), (120_000, ["b"]), (145_500, [])]


def test_a_held_worker_does_not_wake_from_its_delay_either() -> None:
    runtime = _runtime()
    calls: list[list[str]] = []

    def handle(jobs: list[str]) -> float | None:
        calls.append(jobs)
        return 0.01 if jobs else None

    worker = runtime.worker("wal", handle)
    worker.put("a")
    runtime.run_until_idle()
    runtime.hold("wal")
    runtime.advance(50)
    assert calls == [["a"]]
    runtime.release("wal")
    runtime.run_until_idle()
    assert calls == [["a"], []]


def test_closing_a_worker_drains_its_queue_even_when_held() -> None:
    runtime = _runtime()
    handled: list[list[int]] = []

    def handle(jobs: list[int]) -> float | None:
        handled.append(jobs)
        return 0.01

    worker = runtime.worker("wal", handle)
    runtime.hold("wal")
    worker.put(1)
    worker.put(2)
    worker.close()
    worker.close()
    worker.put(3)
    runtime.release("wal")
    runtime.advance(100)
    assert handled == [[1, 2]]


def test_a_worker_closed_with_nothing_to_do_is_not_called() -> None:
    handled: list[list[int]] = []
    _runtime().worker("wal", handled.append).close()
    assert handled == []


def _story(seed: int | None) -> list[str]:
    """Two workers and the loop, each with several steps to take."""
    runtime = _runtime(seed)
    seen: list[str] = []

    def handle(name: str) -> Callable[[list[int]], None]:
        def handled(jobs: list[int]) -> None:
            seen.append(f"{name}{jobs}")
            runtime.from_thread(_noting(seen, f"{name} done"))

        return handled

    workers = [runtime.worker(name, handle(name)) for name in ("x", "y")]
    for job in range(4):
        runtime.soon(_noting(seen, f"loop {job}"))
        for worker in workers:
            worker.put(job)
    runtime.run_until_idle()
    return seen


def test_a_seed_decides_the_order_and_repeats_it() -> None:
    stories = [_story(seed) for seed in range(30)]
    assert stories == [_story(seed) for seed in range(30)]
    assert len({tuple(story) for story in stories}) > 20


def test_whatever_the_seed_loop_and_workers_each_keep_their_order() -> None:
    for seed in range(30):
        story = _story(seed)
        assert [step for step in story if step.startswith("loop")] == [f"loop {n}" for n in range(4)]
        for name in "xy":
            digits = [c for step in story if step.startswith(f"{name}[") for c in step if c.isdigit()]
            assert digits == list("0123")


def test_a_seed_sometimes_gives_a_worker_only_a_part_of_its_queue() -> None:
    assert any("x[0]" in _story(seed) for seed in range(30))
    assert any("x[0, 1, 2, 3]" in _story(seed) for seed in range(30))


def test_an_exception_reaches_whoever_drives_and_the_rest_runs_later() -> None:
    runtime = _runtime()
    seen: list[str] = []

    def broken() -> None:
        raise ValueError("broken")

    runtime.soon(broken)
    runtime.soon(_noting(seen, "after"))
    with pytest.raises(ValueError, match="broken"):
        runtime.run_until_idle()
    runtime.run_until_idle()
    assert seen == ["after"]


def test_a_power_loss_in_a_worker_stops_everything() -> None:
    runtime = _runtime()
    seen: list[str] = []

    def handle(jobs: list[int]) -> None:
        raise Crashed("power loss")

    worker = runtime.worker("wal", handle)
    worker.put(1)
    other: ManualWorker[int] = runtime.worker("other", lambda jobs: seen.append("after"))
    other.put(1)
    runtime.later(0, lambda: runtime.soon(_noting(seen, "before")))
    runtime.later(10, _noting(seen, "after"))
    with pytest.raises(Crashed, match="power loss"):
        runtime.run_until_idle()
    assert runtime.stopped
    runtime.soon(_noting(seen, "after"))
    runtime.later(0, _noting(seen, "after")).cancel()
    worker.put(2)
    worker.close()
    unborn: ManualWorker[int] = runtime.worker("new", lambda jobs: seen.append("after"))
    unborn.put(1)
    runtime.turn()
    runtime.advance(100)
    assert seen == ["before"]


def test_a_power_loss_while_a_worker_is_closed_stops_it_too() -> None:
    runtime = _runtime()

    def handle(jobs: list[int]) -> None:
        raise Crashed("power loss")

    worker = runtime.worker("wal", handle)
    worker.put(1)
    with pytest.raises(Crashed):
        worker.close()
    assert runtime.stopped


def test_stop_inside_a_turn_ends_the_turn() -> None:
    runtime = _runtime()
    seen: list[str] = []
    runtime.soon(runtime.stop)
    runtime.soon(_noting(seen, "after"))
    runtime.turn()
    assert seen == []


def test_a_callback_may_not_drive_the_runtime() -> None:
    runtime = _runtime()
    runtime.soon(runtime.run_until_idle)
    with pytest.raises(AssertionError, match="may not drive"):
        runtime.run_until_idle()


def test_work_without_end_is_an_error_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftq.testing.manual_runtime._STEPS_MAX", 100)
    runtime = _runtime()

    def again() -> None:
        runtime.soon(again)

    runtime.soon(again)
    with pytest.raises(AssertionError, match="for ever"):
        runtime.run_until_idle()
