"""Who is waiting for which topic.

A waiter is called in a turn of its own after the topic of its name got records, lost some, was deleted or was created:
once, however much happened in the turn before. It stays until it is taken away, and finds out by looking what has
happened; being called for nothing must do no harm. Who waits for a sync waits with `engine/write/sync_waiters`.
"""

from collections.abc import Callable

from driftq.system.runtime import Runtime

Waiter = Callable[[], None]


class Wakeups:
    """Waiters by the name of the topic, so that one that is deleted and made again still reaches them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waiters: dict[str, dict[Waiter, None]] = {}
        self._changed: dict[str, None] = {}

    def add(self, name: str, waiter: Waiter) -> None:
        """Call this one from now on."""
        self._waiters.setdefault(name, {})[waiter] = None

    def discard(self, name: str, waiter: Waiter) -> None:
        """And no more."""
        waiters = self._waiters.get(name)
        if waiters is not None:
            waiters.pop(waiter, None)
            if not waiters:
                del self._waiters[name]

    def names(self) -> list[str]:
        """The topics that somebody is waiting for."""
        return list(self._waiters)

    def awaited(self, name: str) -> bool:
        """Is anybody waiting for this one?"""
        return name in self._waiters

    def wake(self, name: str) -> None:
        """Something has happened to a topic."""
        if name in self._waiters:
            if not self._changed:
                self._runtime.soon(self._call)
            self._changed[name] = None

    def _call(self) -> None:
        changed, self._changed = self._changed, {}
        for name in changed:
            for waiter in list(self._waiters.get(name, ())):
                waiter()
