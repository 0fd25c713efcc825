"""Somebody else's coroutines on the loop of a test."""

from collections.abc import Callable, Coroutine
from typing import Any

from driftq.system.loop_thread import Ended
from driftq.testing import ManualRuntime


class Coroutines:
    """Steps them on the loop; one that waits for anything waits for ever."""

    def __init__(self, runtime: ManualRuntime) -> None:
        self._runtime = runtime
        self.cancelled = 0

    def start(self, make: Callable[[], Coroutine[Any, Any, object]], ended: Ended) -> Callable[[], None]:
        coroutine = make()

        def step() -> None:
            try:
                coroutine.send(None)
            except StopIteration as end:
                ended(end.value, None)
            except Exception as error:  # noqa: BLE001
                ended(None, error)

        self._runtime.soon(step)

        def cancel() -> None:
            self.cancelled += 1
            coroutine.close()

        return cancel

    def close(self) -> None:
        """Nothing to end."""
