"""Threads for blocking calls: a pool that works for an event loop, or a single daemon thread."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class ThreadPool(Generic[T, R]):
    """Threads that call one function with one item at a time, and pass the results to the running loop.

        put → waiting → in a thread → returned → `done` is called on the loop

    A thread takes its next item without waiting for the loop. The loop is woken once for all calls that have returned
    by then. For every item, `done` is called exactly once, with the result of the function or the exception that it
    raised, unless the item is withdrawn or the crew is closed before.
    """

    def __init__(
        self, count: int, name: str, function: Callable[[T], R], done: Callable[[T, R | BaseException], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._function, self._done = function, done
        self._waiting: SimpleQueue[tuple[T] | None] = SimpleQueue()
        self._returned: deque[tuple[T, R | BaseException]] = deque()
        self._is_woken = False
        self._count = count
        for number in range(count):
            threading.Thread(target=self._run, name=f"{name}-{number}").start()

    def put(self, item: T) -> None:
        """Queue an item; the next free thread calls the function with it."""
        self._waiting.put((item,))

    def _run(self) -> None:
        while (next_ := self._waiting.get()) is not None:
            (item,) = next_
            try:
                returned: R | BaseException = self._function(item)
            except BaseException as error:  # noqa: BLE001  # it belongs to the caller that put the item
                returned = error
            self._returned.append((item, returned))
            # The loop clears the mark before it reads the results, so it sees all that came while it was set.
            if not self._is_woken:
                self._is_woken = True
                with suppress(RuntimeError):  # the loop is closed, so no task waits for the result
                    self._loop.call_soon_threadsafe(self._deliver)
            del item, next_, returned

    def _deliver(self) -> None:
        self._is_woken = False
        while self._returned:
            self._done(*self._returned.popleft())

    def withdraw(self) -> list[T]:
        """Remove the items that wait for a thread, and return them in order."""
        items: list[T] = []
        with suppress(Empty):
            while (next_ := self._waiting.get_nowait()) is not None:
                items += next_
        return items

    def close(self) -> None:
        """Start no more calls; do not wait for those that run. Must be called only once."""
        self.withdraw()
        for _ in range(self._count):
            self._waiting.put(None)


def start_thread(name: str, run: Callable[[], None]) -> threading.Thread:
    """Start a thread that does not keep the process alive."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
