"""Callbacks of readers that wait for changes of a topic.

A waiter is called in a loop turn of its own after the topic of its name got records, lost some, was deleted or was
created: once, however much happened in the turn before. Waiters of a topic are called in the order in which they
were added; claims that wait rely on it (http-v0 §22.7). A waiter stays registered until it is removed. It must check
what has happened, and a call without a change must do no harm. `engine/write/sync_waiters` has the callers that wait
for a sync.
"""

from collections.abc import Callable

from driftq.system.runtime import Runtime

Waiter = Callable[[], None]


class Wakeups:
    """Waiters by topic name, so that they also get changes of a topic that is deleted and created again."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waiters: dict[str, dict[Waiter, None]] = {}
        self._changed: dict[str, None] = {}

    def add(self, name: str, waiter: Waiter) -> None:
        """Call `waiter` after every change of a topic from now on."""
        self._waiters.setdefault(name, {})[waiter] = None

    def discard(self, name: str, waiter: Waiter) -> None:
        """Stop calling `waiter` for a topic."""
        waiters = self._waiters.get(name)
        if waiters is not None:
            waiters.pop(waiter, None)
            if not waiters:
                del self._waiters[name]

    def names(self) -> list[str]:
        """Return the names of topics that have waiters."""
        return list(self._waiters)

    def awaited(self, name: str) -> bool:
        """Whether a topic has waiters."""
        return name in self._waiters

    def wake(self, name: str) -> None:
        """Call the waiters of a changed topic in the next loop turn."""
        if name in self._waiters:
            if not self._changed:
                self._runtime.soon(self._call)
            self._changed[name] = None

    def _call(self) -> None:
        changed, self._changed = self._changed, {}
        for name in changed:
            for waiter in list(self._waiters.get(name, ())):
                waiter()
