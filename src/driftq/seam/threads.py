"""Threads for calls that block: a pool for a process that awaits them, or one of its own."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """So many calls at a time, each in a thread; more wait their turn."""

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What it returns or raises. To be called off does not end a call that has begun."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: function(*args, **kwargs))

    def close(self) -> None:
        """Begin no more calls; those that run are not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def start_thread(name: str, run: Callable[[], None]) -> threading.Thread:
    """Start a thread that does not keep the process alive."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
