"""Event loop and threads.

One loop owns all state: every callback given to `soon`, `later` and `from_thread` runs on it, one at a time, to its
end. A `SerialWorker` is one thread with an ordered queue of jobs for blocking I/O. It passes its whole queue to one
`handle` call, so that work that piled up while the device was busy is done together. It reports results through
`from_thread`.

A `Pending` can be awaited in a coroutine that `run` steps through: no event loop takes part, so the same code runs on
the real loop and on a simulated one.

`AsyncioRuntime` is the real runtime. `driftq.testing.ManualRuntime` runs the same code without threads, in an order
that a seed decides.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from driftq.system.writer_process import OsWriterProcess, WriterProcess

Job = TypeVar("Job")
Job_contra = TypeVar("Job_contra", contravariant=True)
T = TypeVar("T")
U = TypeVar("U")

Handle = Callable[[list[Job]], float | None]
"""Takes all waiting jobs. Returns the seconds after which it wants to be called again without a job, or None."""


class Timer(Protocol):
    """A callback that has not run yet."""

    def cancel(self) -> None:
        """Cancel the callback: it never runs."""
        ...


class SerialWorker(Protocol[Job_contra]):
    """One thread that does its jobs in order."""

    def put(self, job: Job_contra) -> None:
        """Queue a job. Never blocks."""
        ...

    def close(self) -> None:
        """Finish the queued jobs, then end. Blocks until the thread has ended."""
        ...


class Runtime(Protocol):
    """The interface of the engine to the process that it runs in."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Run on the loop, after the running callback and those queued before this one."""
        ...

    def later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Run on the loop after at least `delay_ms` milliseconds."""
        ...

    def from_thread(self, callback: Callable[[], None]) -> None:
        """Run on the loop; may be called from any thread."""
        ...

    def worker(self, name: str, handle: Handle[Job]) -> SerialWorker[Job]:
        """Start a thread that calls `handle` with the list of all waiting jobs.

        It also calls it without a job, after the seconds that `handle` returned.
        """
        ...

    def writer_process(self) -> WriterProcess | None:
        """Return a writer process that has no work yet, or None if there is none: then a worker does the work."""
        ...


class Pending(Struct, Generic[T], eq=False):
    """The result of an operation that may still wait for its commit. Settled once, on the loop."""

    settled: bool = False
    error: BaseException | None = None
    _value: T | None = None
    _then: "Callable[[Pending[T]], None] | None" = None

    def resolve(self, value: T) -> None:
        """Settle with a value, and run the callbacks."""
        assert not self.settled
        self.settled = True
        self._value = value
        then = self._then
        if then is not None:
            self._then = None
            then(self)

    def fail(self, error: BaseException) -> None:
        """Settle with an error, and run the callbacks."""
        assert not self.settled
        self.settled = True
        self.error = error
        then = self._then
        if then is not None:
            self._then = None
            then(self)

    def then(self, callback: "Callable[[Pending[T]], None]") -> None:
        """Call `callback` when settled; at once if it is already."""
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
        """Whether a callback waits for the result."""
        return self._then is not None

    def result(self) -> T:
        """Return the value of a settled operation, or raise its error."""
        assert self.settled, "the operation is not settled yet"
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]

    def mapped(self, make: "Callable[[T], U]") -> "Pending[U]":
        """Return what `make` returns for the value, once it is known; an error of either is the error of the result."""
        answer: Pending[U] = Pending()

        def settle(done: "Pending[T]") -> None:
            try:
                made = make(done.result())
            except Exception as error:  # noqa: BLE001  # a bug ends one answer; other callbacks of `self` run too
                answer.fail(error)
            else:
                answer.resolve(made)

        self.then(settle)
        return answer

    def __await__(self) -> "Generator[Pending[Any], None, T]":
        if not self.settled:
            yield self
        return self.result()


class _Several(Generic[T]):
    """The callbacks of a `Pending` that has several, in the order in which they were added."""

    __slots__ = ("callbacks",)

    def __init__(self, callbacks: list[Callable[[Pending[T]], None]]) -> None:
        self.callbacks = callbacks

    def __call__(self, done: Pending[T]) -> None:
        for callback in self.callbacks:
            callback(done)


def run(steps: "Coroutine[Pending[Any], None, T]") -> Pending[T]:
    """Step through a coroutine that awaits only `Pending`s. On return it has begun, and may have ended."""
    answer: Pending[T] = Pending()

    def step(_: "Pending[Any] | None" = None) -> None:
        try:
            waiting = steps.send(None)
        except StopIteration as end:
            answer.resolve(end.value)
        except Exception as error:  # noqa: BLE001  # the caller gets it through `answer`
            answer.fail(error)
        else:
            waiting.then(step)

    step()
    return answer


def each(items: Iterable[T], step: Callable[[T], None]) -> None:
    """Call `step` for every item, even after one fails. Raises all errors as one ExceptionGroup at the end."""
    failures: list[Exception] = []
    for item in items:
        try:
            step(item)
        except Exception as error:  # noqa: BLE001  # it is raised below
            failures.append(error)
    if failures:
        raise ExceptionGroup(f"{len(failures)} calls failed; all others were made", failures)


class ThreadWorker(Generic[Job]):
    """A worker on a thread of its own."""

    def __init__(self, name: str, handle: Handle[Job]) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._handle = handle
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, job: Job) -> None:
        """Queue a job for the thread."""
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
            job = None  # otherwise the objects of the last job would stay in memory until the next one
            if jobs or not closing:
                delay = self._handle(jobs)


class AsyncioRuntime:
    """The running asyncio loop, real threads, and the writer processes that were forked before both."""

    def __init__(self, loop: asyncio.AbstractEventLoop, writer_processes: Sequence[OsWriterProcess] = ()) -> None:
        self._loop = loop
        self._writer_processes = list(writer_processes)

    def soon(self, callback: Callable[[], None]) -> None:
        """Run in the next turn of the loop."""
        self._loop.call_soon(callback)

    def later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Call back after at least `delay_ms` milliseconds."""
        # uvloop counts whole milliseconds from the start of the current one, so its timers fire up to 1 ms early.
        return self._loop.call_later((delay_ms + 1) / 1000 if delay_ms else 0, callback)

    def from_thread(self, callback: Callable[[], None]) -> None:
        """Run in the next turn of the loop; may be called from any thread. Does nothing if the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def worker(self, name: str, handle: Handle[Job]) -> ThreadWorker[Job]:
        """Start a thread that calls `handle`."""
        return ThreadWorker(name, handle)

    def writer_process(self) -> WriterProcess | None:
        """Return a running writer process that was forked before the loop existed, or None."""
        while self._writer_processes:
            writer_process = self._writer_processes.pop()
            if writer_process.alive:
                writer_process.attach(self._loop)
                return writer_process
        return None

    def future(self, pending: Pending[T]) -> asyncio.Future[T]:
        """Return a future with the same result."""
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
