"""Threads for calls that block: a crew for an event loop that hands them out, or one of its own."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Crew(Generic[T, R]):
    """Threads that call one function, each with one item at a time, and give what it returned to the running loop.

        put → waits → in a thread → returned → `done` is called on the loop

    A thread that has returned takes the next item without waiting for the loop. The loop is woken once for all calls
    that have returned by the time it looks. Every item that is put comes back exactly once, with what the function
    returned or the exception that it raised, unless the crew is closed before.
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
        """Have the function called with an item as soon as a thread is free."""
        self._waiting.put((item,))

    def _run(self) -> None:
        while (next_ := self._waiting.get()) is not None:
            (item,) = next_
            try:
                returned: R | BaseException = self._function(item)
            except BaseException as error:  # noqa: BLE001  # it belongs to whoever put the item
                returned = error
            self._returned.append((item, returned))
            # The loop clears the mark before it looks: what was added before a mark that is still set will be seen.
            if not self._is_woken:
                self._is_woken = True
                with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                    self._loop.call_soon_threadsafe(self._deliver)
            del item, next_, returned

    def _deliver(self) -> None:
        self._is_woken = False
        while self._returned:
            self._done(*self._returned.popleft())

    def withdraw(self) -> list[T]:
        """Take back the items that wait for a thread, in their order."""
        items: list[T] = []
        with suppress(Empty):
            while (next_ := self._waiting.get_nowait()) is not None:
                items += next_
        return items

    def close(self) -> None:
        """Begin no more calls; those that run are not waited for. To be called once."""
        self.withdraw()
        for _ in range(self._count):
            self._waiting.put(None)


def start_thread(name: str, run: Callable[[], None]) -> threading.Thread:
    """Start a thread that does not keep the process alive."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
