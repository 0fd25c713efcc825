"""What users give to workers: options, and functions that do the work.

A worker acks what its handler has done, so a handler that only looks as if it had run is refused: a coroutine function
given to `Worker`, a generator function given to any worker. Not every one can be seen beforehand (a decorator may hide
it, a lambda may return a coroutine), so what a handler returns is checked as well, and the work is then nacked.
"""

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Generator
from typing import Any, TypedDict, TypeVar

from driftq.client.workers.held_work import DeadLetter, Retry

Item = TypeVar("Item")
"""What a handler gets."""

Outcome = None | str | bytes | int | float | Collection[Any] | Retry | DeadLetter
"""What a handler returns. An awaitable is none of these, so a type checker finds a handler that nobody awaits."""


class WorkerOptions(TypedDict, total=False):
    """What every worker can be told."""

    concurrency: int
    """How many handlers run at a time; 8 unless said."""
    lease_ms: int
    """How long a lease is; it is extended as long as its handler runs. 30 000 unless said."""
    drain_s: float
    """How long a worker that stops waits for its handlers; 30 unless said."""
    owner: str
    """Under which name it takes leases; one of its own unless said."""


def check_options(options: WorkerOptions) -> None:
    """Raise TypeError for an option that a worker does not have, such as a misspelt one."""
    known = WorkerOptions.__annotations__
    for name in options:
        if name not in known:
            raise TypeError(f"a worker has no option {name!r}; the options are {', '.join(sorted(known))} and effects")


def check_plain(handle: Callable[..., object]) -> None:
    """Raise TypeError for a handler that `Worker` cannot run: a coroutine function or a generator function."""
    if any(map(inspect.iscoroutinefunction, _called(handle))):
        raise TypeError(
            f"the handler {_name(handle)} is a coroutine function, which Worker does not await; "
            "give it to AsyncWorker, or give Worker a plain function"
        )
    _check_returns(handle)


def check_awaitable(handle: Callable[..., object]) -> None:
    """Raise TypeError for a handler that `AsyncWorker` cannot run: a generator function.

    Other plain functions are taken: they may return an awaitable, and only a call can tell.
    """
    _check_returns(handle)


def run_plain(handle: Callable[[Item], Outcome], item: Item) -> Outcome:
    """Return what a plain function returns. Raise TypeError if that is work which has not been done yet."""
    outcome = handle(item)
    check_outcome(handle, outcome)
    return outcome


def check_outcome(handle: Callable[..., object], outcome: object) -> object:
    """Return what a handler returned. Raise TypeError if that is work which has not been done yet."""
    if not (inspect.isawaitable(outcome) or isinstance(outcome, Generator | AsyncGenerator)):
        return outcome
    if isinstance(outcome, Coroutine | Generator):
        outcome.close()
    raise TypeError(
        f"the handler {_name(handle)} returned a {type(outcome).__name__} instead of a result, so its work is not "
        "done; await it in a coroutine function and use AsyncWorker, or use a plain function"
    )


def _check_returns(handle: Callable[..., object]) -> None:
    if any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in _called(handle)):
        raise TypeError(f"the handler {_name(handle)} is a generator function; a handler returns, it does not yield")


def _called(handle: Callable[..., object]) -> tuple[object, object]:
    """Return the functions that run when a handler is called: it or its `__call__`, without `functools.partial`."""
    while isinstance(handle, functools.partial):
        handle = handle.func
    return handle, getattr(handle, "__call__", None)  # noqa: B004  # the bound method, not whether there is one


def _name(handle: Callable[..., object]) -> str:
    while isinstance(handle, functools.partial):
        handle = handle.func
    return getattr(handle, "__qualname__", type(handle).__qualname__)
