"""Event loop, timers and workers without threads, in an order that a test or a seed decides.

Everything runs inside the call that drives the runtime (`turn`, `run_loop_only`, `run_until_idle`, `advance`), one
callback or one `handle` at a time, to its end. So a run depends only on the seed and on what the test did, and races
between threads appear as different orders of whole steps.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Generic

from driftq.model.units import NS_PER_MS, NS_PER_S
from driftq.system.disk import Disk
from driftq.system.runtime import Handle, Job
from driftq.testing.manual_clock import ManualClock
from driftq.testing.manual_writer_process import ManualWriterProcess
from driftq.testing.simulated_disk import Crashed

_STEPS_MAX = 1_000_000


class ManualTimer:
    """A callback and when it is due; sorted by due time, then by age."""

    __slots__ = ("age", "callback", "due_ns")

    def __init__(self, due_ns: int, age: int, callback: Callable[[], None] | None) -> None:
        self.due_ns = due_ns
        self.age = age
        self.callback = callback

    def __lt__(self, other: "ManualTimer") -> bool:
        return (self.due_ns, self.age) < (other.due_ns, other.age)

    def cancel(self) -> None:
        """Make sure that the callback never runs, even if it is due and waits for its turn."""
        self.callback = None

    def fire(self) -> None:
        """Run the callback, unless it was cancelled."""
        if self.callback is not None:
            self.callback()


class ManualWorker(Generic[Job]):
    """A queue of jobs and the `handle` that takes them; it runs when its runtime decides."""

    def __init__(self, runtime: "ManualRuntime", name: str, handle: Handle[Job]) -> None:
        self.name = name
        self.idle_ns: int | None = None
        self._runtime = runtime
        self._handle = handle
        self._jobs: deque[Job] = deque()
        self._closed = False

    def put(self, job: Job) -> None:
        """Queue a job. As with a real thread, a job that comes after `close` is never handled."""
        if not self._closed and not self._runtime.stopped:
            self._jobs.append(job)

    def close(self) -> None:
        """Handle everything queued, even while the worker is held, because the real `close` waits for it; then end."""
        if self._closed:
            return
        self._closed = True
        if self._jobs:
            self._runtime.run(lambda: self.take(len(self._jobs)))
        self.idle_ns = None

    def queued(self) -> int:
        """Return how many jobs are queued."""
        return len(self._jobs)

    def due(self, now_ns: int) -> bool:
        """Whether there are jobs, or its idle deadline has passed."""
        return bool(self._jobs) or (self.idle_ns is not None and self.idle_ns <= now_ns)

    def take(self, jobs_max: int) -> None:
        """Call `handle` once, with up to `jobs_max` of the oldest jobs; with an empty list if there are none."""
        jobs = [self._jobs.popleft() for _ in range(min(jobs_max, len(self._jobs)))]
        self.idle_ns = None
        delay_s = self._handle(jobs)
        if delay_s is not None:
            self.idle_ns = self._runtime.clock.monotonic_ns() + round(delay_s * NS_PER_S)

    def forget(self) -> None:
        """Drop all jobs, as if the process had died."""
        self._jobs.clear()
        self.idle_ns = None


class ManualRuntime:
    """A `Runtime` that a test drives.

    Without a seed, the loop runs before any worker, and workers run in the order of their creation. With a seed, each
    next step is chosen at random among the oldest loop callback and all workers that have work. Sometimes a worker
    gets only the oldest part of its queue, like a thread that woke up early.

    Exceptions of callbacks and handles go to the caller that drives the runtime. `Crashed` also stops it: a process
    whose machine lost power runs nothing more, and every later call is ignored.

    With a disk in `writer_processes_on` and an odd seed, fake writer processes on that disk do their work. So tests
    over many seeds cover a server with and without writer processes.
    """

    def __init__(self, clock: ManualClock, seed: int | None = None, *, writer_processes_on: Disk | None = None) -> None:
        self.clock = clock
        self.writer_processes: list[ManualWriterProcess] = []
        """The writer processes that were requested, in that order."""
        self._writer_processes_on = writer_processes_on if seed is not None and seed % 2 else None
        self.stopped = False
        self._random = None if seed is None else random.Random(seed)
        self._ready: deque[Callable[[], None]] = deque()
        self._timers: list[ManualTimer] = []
        self._ages = count()
        self._workers: list[ManualWorker[Any]] = []
        self._held: set[str] = set()
        self._driven = False

    def soon(self, callback: Callable[[], None]) -> None:
        """Queue a callback for the loop."""
        if not self.stopped:
            self._ready.append(callback)

    def later(self, delay_ms: int, callback: Callable[[], None]) -> ManualTimer:
        """Queue a callback for the loop when the manual clock has passed the delay."""
        timer = ManualTimer(self.clock.monotonic_ns() + delay_ms * NS_PER_MS, next(self._ages), callback)
        if not self.stopped:
            heapq.heappush(self._timers, timer)
        return timer

    def from_thread(self, callback: Callable[[], None]) -> None:
        """Queue a callback for the loop; there are no threads here."""
        self.soon(callback)

    def worker(self, name: str, handle: Handle[Job]) -> ManualWorker[Job]:
        """Return a worker that runs without a thread."""
        worker = ManualWorker(self, name, handle)
        self._workers.append(worker)
        return worker

    def writer_process(self) -> ManualWriterProcess | None:
        """Return a writer process on the disk of this runtime; None if it has no such disk."""
        if self._writer_processes_on is None:
            return None
        self.writer_processes.append(ManualWriterProcess(self, self.clock, self._writer_processes_on))
        return self.writer_processes[-1]

    def hold(self, worker_name: str) -> None:
        """Keep all workers with this name from running, including later ones."""
        self._held.add(worker_name)

    def release(self, worker_name: str) -> None:
        """Let the workers with this name run again."""
        self._held.discard(worker_name)

    def turn(self) -> None:
        """Run one turn of the loop: the callbacks that are queued now, not those they queue, and no worker."""
        with self._driving():
            self._queue_due_timers()
            for _ in range(len(self._ready)):
                if self._ready:
                    self.run(self._ready.popleft())

    def run_loop_only(self) -> None:
        """Run turns until no callback is queued; workers do not run."""
        self._run_all(with_workers=False)

    def run_until_idle(self) -> None:
        """Run callbacks, due timers and workers until nothing is due."""
        self._run_all(with_workers=True)

    def advance(self, ms: int) -> None:
        """Let time pass; stop at each timer and idle deadline on the way, and run what is due then."""
        end_ns = self.clock.monotonic_ns() + ms * NS_PER_MS
        self.run_until_idle()
        while not self.stopped and (due_ns := self._next_due_ns()) is not None and due_ns <= end_ns:
            self.clock.advance_ns(due_ns - self.clock.monotonic_ns())
            self.run_until_idle()
        self.clock.advance_ns(max(0, end_ns - self.clock.monotonic_ns()))

    def stop(self) -> None:
        """Stop as if the process had died: nothing runs any more, and nothing can be queued."""
        self.stopped = True
        self._ready.clear()
        self._timers.clear()
        for worker in self._workers:
            worker.forget()

    def run(self, step: Callable[[], None]) -> None:
        """Run one step to its end; a power loss inside it stops the runtime."""
        try:
            step()
        except Crashed:
            self.stop()
            raise

    @contextmanager
    def _driving(self) -> Iterator[None]:
        assert not self._driven, "a callback may not drive the runtime that runs it"
        self._driven = True
        try:
            yield
        finally:
            self._driven = False

    def _run_all(self, *, with_workers: bool) -> None:
        with self._driving():
            for _ in range(_STEPS_MAX):
                if not self._step(with_workers=with_workers):
                    return
        raise AssertionError(f"still busy after {_STEPS_MAX} steps: something queues itself for ever")

    def _step(self, *, with_workers: bool) -> bool:
        self._queue_due_timers()
        now_ns = self.clock.monotonic_ns()
        choices: list[ManualWorker[Any] | None] = [None] if self._ready else []
        if with_workers:
            choices += [w for w in self._workers if w.name not in self._held and w.due(now_ns)]
        if not choices:
            return False
        chosen = choices[0] if self._random is None else self._random.choice(choices)
        if chosen is None:
            self.run(self._ready.popleft())
        else:
            self.run(lambda: chosen.take(self._share(chosen.queued())))
        return True

    def _share(self, queued: int) -> int:
        if self._random is None or queued < 2 or self._random.randrange(3):
            return queued
        return self._random.randint(1, queued)

    def _queue_due_timers(self) -> None:
        now_ns = self.clock.monotonic_ns()
        while self._timers and self._timers[0].due_ns <= now_ns:
            self._ready.append(heapq.heappop(self._timers).fire)

    def _next_due_ns(self) -> int | None:
        moments = [w.idle_ns for w in self._workers if w.idle_ns is not None and w.name not in self._held]
        moments += [timer.due_ns for timer in self._timers if timer.callback is not None]
        return min(moments, default=None)
