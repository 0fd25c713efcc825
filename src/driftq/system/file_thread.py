"""A thread for blocking file work that reports its results on the loop."""

from collections.abc import Callable
from typing import TypeVar

from driftq.system.runtime import Runtime, SerialWorker

T = TypeVar("T")
Work = Callable[[], None]


class FileThread:
    """One thread that runs file work in order and reports each result on the loop."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        self._runtime = runtime
        self.jobs = 0
        """The number of jobs without a result."""
        self._answered = 0
        self._worker: SerialWorker[Work] = runtime.worker(name, self._handle)

    def submit(self, work: Callable[[], T], done: Callable[[T | None, Exception | None], None]) -> None:
        """Run `work` on the thread, then call `done` with its value or its error on the loop."""
        self.jobs += 1

        def answer(value: T | None, error: Exception | None) -> None:
            self.jobs -= 1
            self._answered += 1
            done(value, error)

        def run() -> None:
            try:
                value = work()
            except Exception as failure:  # noqa: BLE001 - the thread must continue; the loop gets the error
                error = failure
                self._runtime.from_thread(lambda: answer(None, error))
            else:
                self._runtime.from_thread(lambda: answer(value, None))

        self._worker.put(run)

    @property
    def oldest(self) -> int | None:
        """Return the number of the oldest job without a result."""
        return self._answered + 1 if self.jobs else None

    def close(self) -> None:
        """Finish the queued jobs, then end the thread."""
        self._worker.close()

    def _handle(self, jobs: list[Work]) -> None:
        for job in jobs:
            job()
