"""Loop and threads, as one seam.

One loop owns all state: every callback given to `soon`, `later` and `from_thread` runs on it, one at a time, to its
end. A `SerialWorker` is one thread with an ordered queue of jobs for blocking I/O. It hands its whole queue to one
`handle` call, so that work which piled up while the device was busy is done together, and answers through
`from_thread`.

A `Pending` can be awaited in a coroutine that `run` steps through: no event loop takes part, so the same code runs on
the real loop and on a simulated one.

`AsyncioRuntime` is the real one. `driftq.testing.ManualRuntime` runs the same code without threads, in an order that
a seed decides.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from driftq.system.writer_process import Scribe, ScribeProcess

Job = TypeVar("Job")
Job_contra = TypeVar("Job_contra", contravariant=True)
T = TypeVar("T")

Handle = Callable[[list[Job]], float | None]
"""Takes all jobs that are waiting. Returns after how many seconds it wants to be called again with none, or None."""


class Timer(Protocol):
    """A callback that has not run yet."""

    def cancel(self) -> None:
        """It never runs."""
        ...


class SerialWorker(Protocol[Job_contra]):
    """One thread, in order."""

    def put(self, job: Job_contra) -> None:
        """Queue a job. Never blocks."""
        ...

    def close(self) -> None:
        """Do what is queued, then end. Blocks until the thread is gone."""
        ...


class Runtime(Protocol):
    """What the engine asks of the process it lives in."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Run on the loop once the running callback and those before it are through."""
        ...

    def later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Run on the loop after a while."""
        ...

    def from_thread(self, callback: Callable[[], None]) -> None:
        """Run on the loop; may be called from any thread."""
        ...

    def worker(self, name: str, handle: Handle[Job]) -> SerialWorker[Job]:
        """Start a worker whose thread calls `handle`."""
        ...

    def scribe(self) -> Scribe | None:
        """A process that waits to be told what to do; None where there is none left, and a worker has to do."""
        ...


class Pending(Struct, Generic[T], eq=False):
    """The answer of an operation that may still be waiting for its commit. Settled once, on the loop."""

    settled: bool = False
    error: BaseException | None = None
    _value: T | None = None
    _then: "Callable[[Pending[T]], None] | None" = None

    def resolve(self, value: T) -> None:
        """It worked."""
        assert not self.settled
        self.settled = True
        self._value = value
        then = self._then
        if then is not None:
            self._then = None
            then(self)

    def fail(self, error: BaseException) -> None:
        """It did not."""
        assert not self.settled
        self.settled = True
        self.error = error
        then = self._then
        if then is not None:
            self._then = None
            then(self)

    def then(self, callback: "Callable[[Pending[T]], None]") -> None:
        """Call back when settled: at once if it is."""
        if self.settled:
            callback(self)
        elif self._then is None:
            self._then = callback
        elif isinstance(self._then, _Several):
            self._then.callbacks.append(callback)
        else:
            self._then = _Several([self._then, callback])

    @property
    def awaited(self) -> bool:
        """Whether a callback waits for it to be settled."""
        return self._then is not None

    def result(self) -> T:
        """The value of a settled operation, or its error raised."""
        assert self.settled, "asked for the result of an operation that is under way"
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]

    def __await__(self) -> "Generator[Pending[Any], None, T]":
        if not self.settled:
            yield self
        return self.result()


class _Several(Generic[T]):
    """Callbacks of a `Pending` for which more than one waits, as few do: in the order they came."""

    __slots__ = ("callbacks",)

    def __init__(self, callbacks: list[Callable[[Pending[T]], None]]) -> None:
        self.callbacks = callbacks

    def __call__(self, done: Pending[T]) -> None:
        for callback in self.callbacks:
            callback(done)


def run(steps: "Coroutine[Pending[Any], None, T]") -> Pending[T]:
    """Step through a coroutine that awaits nothing but `Pending`s. It has begun, and maybe ended, on return."""
    answer: Pending[T] = Pending()

    def step(_: "Pending[Any] | None" = None) -> None:
        try:
            waiting = steps.send(None)
        except StopIteration as end:
            answer.resolve(end.value)
        except Exception as error:  # noqa: BLE001  # whatever it is, it belongs to whoever asked
            answer.fail(error)
        else:
            waiting.then(step)

    step()
    return answer


def each(items: Iterable[T], step: Callable[[T], None]) -> None:
    """Let every one have its turn, whatever becomes of the others. What some raise is raised behind the last one."""
    failures: list[Exception] = []
    for item in items:
        try:
            step(item)
        except Exception as error:  # noqa: BLE001  # it is raised below
            failures.append(error)
    if failures:
        raise ExceptionGroup(f"{len(failures)} failed, and the others had their turns", failures)


class ThreadWorker(Generic[Job]):
    """A worker on a thread of its own."""

    def __init__(self, name: str, handle: Handle[Job]) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._handle = handle
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, job: Job) -> None:
        """Queue a job."""
        self._jobs.put(job)

    def close(self) -> None:
        """End the thread once its queue is empty."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        delay: float | None = None
        closing = False
        while not closing:
            jobs: list[Job] = []
            try:
                job = self._jobs.get(timeout=delay)
                while job is not None:
                    jobs.append(job)
                    job = self._jobs.get_nowait()
                closing = True
            except queue.Empty:
                pass
            job = None  # or what the last one holds would stay in memory until the next one comes
            if jobs or not closing:
                delay = self._handle(jobs)


class AsyncioRuntime:
    """The running asyncio loop, real threads, and the processes that were forked before both."""

    def __init__(self, loop: asyncio.AbstractEventLoop, scribes: Sequence[ScribeProcess] = ()) -> None:
        self._loop = loop
        self._scribes = list(scribes)

    def soon(self, callback: Callable[[], None]) -> None:
        """Next turn."""
        self._loop.call_soon(callback)

    def later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Call back after at least `delay_ms` milliseconds."""
        # uvloop counts whole milliseconds from the one that has begun, so its timers end up to 1 ms early.
        return self._loop.call_later((delay_ms + 1) / 1000 if delay_ms else 0, callback)

    def from_thread(self, callback: Callable[[], None]) -> None:
        """Next turn, from anywhere. A loop that is gone has nobody left to tell."""
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def worker(self, name: str, handle: Handle[Job]) -> ThreadWorker[Job]:
        """A thread."""
        return ThreadWorker(name, handle)

    def scribe(self) -> Scribe | None:
        """One of those that were forked before the loop was there."""
        while self._scribes:
            scribe = self._scribes.pop()
            if scribe.alive:
                scribe.attach(self._loop)
                return scribe
        return None

    def future(self, pending: Pending[T]) -> asyncio.Future[T]:
        """The same answer as something to await."""
        future: asyncio.Future[T] = self._loop.create_future()

        def settle(done: Pending[T]) -> None:
            if future.done():
                return
            if done.error is not None:
                future.set_exception(done.error)
            else:
                future.set_result(done.result())

        pending.then(settle)
        return future
