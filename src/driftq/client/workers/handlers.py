"""Options of workers, and checks of the handlers that users pass to them.

A worker acks an item when its handler has returned. So it refuses a handler whose call does not do the work: a
coroutine function for `Worker`, a generator function for any worker. A check in advance cannot find all of them (a
decorator may hide one, a lambda may return a coroutine), so the returned value is checked too, and such an item is
nacked.
"""

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Generator
from typing import Any, TypedDict, TypeVar

from driftq.client.workers.held_work import DeadLetter, Retry

Item = TypeVar("Item")
"""The type of the items that a handler gets: `Job` or `Delivery`."""

Outcome = None | str | bytes | int | float | Collection[Any] | Retry | DeadLetter
"""What a handler may return. An awaitable is not among it, so a type checker finds a handler that is not awaited."""


class WorkerOptions(TypedDict, total=False):
    """The options that every kind of worker has."""

    concurrency: int
    """How many handlers run at the same time; the default is 8."""
    lease_ms: int
    """The length of a lease; it is extended while the handler runs. The default is 30 000 ms."""
    drain_s: float
    """How long a stopping worker waits for its handlers; the default is 30 s."""
    owner: str
    """The name under which the worker takes leases; the default is a generated, unique name."""


def check_options(options: WorkerOptions) -> None:
    """Raise TypeError for an unknown option, such as a misspelt one."""
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

    Other plain functions are accepted: they may return an awaitable, which only a call can show.
    """
    _check_returns(handle)


def run_plain(handle: Callable[[Item], Outcome], item: Item) -> Outcome:
    """Call a plain function and return its result. Raise TypeError if the result is work that was not done yet."""
    outcome = handle(item)
    check_outcome(handle, outcome)
    return outcome


def check_outcome(handle: Callable[..., object], outcome: object) -> object:
    """Return `outcome`. Raise TypeError if it is work that was not done yet: an awaitable or a generator."""
    if outcome is None or not (inspect.isawaitable(outcome) or isinstance(outcome, Generator | AsyncGenerator)):
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
    """Return the functions that a call may run: the handler and its `__call__`, without `functools.partial`."""
    while isinstance(handle, functools.partial):
        handle = handle.func
    return handle, getattr(handle, "__call__", None)  # noqa: B004  # the bound method, not whether there is one


def _name(handle: Callable[..., object]) -> str:
    while isinstance(handle, functools.partial):
        handle = handle.func
    return getattr(handle, "__qualname__", type(handle).__qualname__)
