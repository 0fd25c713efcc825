"""Turns one definition of an operation into a method of both clients, with the right types for each.

A set of operations is a class whose methods return plans, decorated with `operation` or `flow`. Two subclasses bind it:
with `Blocking`, a call returns the answer; with `Async`, it returns a coroutine. A type checker sees `Callable[P, T]`
in the first case and `Callable[P, Coroutine[Any, Any, T]]` in the second.
"""

from collections.abc import Callable, Coroutine
from functools import update_wrapper, wraps
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from driftq.client.transport.calls import Calls
from driftq.client.transport.drivers import AsyncDriver, AsyncStream, Driver, Stream
from driftq.client.transport.plan import Flow, Plan

P = ParamSpec("P")
T = TypeVar("T")


class Operations:
    """Base of every set of operations: it has the calls and the driver."""

    def __init__(self, calls: Calls, driver: Any) -> None:
        self._calls = calls
        self._driver = driver

    @property
    def _node(self) -> str:
        """Return the name of the client. It is not stored, because a forked child has another name."""
        return self._calls.node.current()


class Blocking(Operations):
    """Operations that the blocking driver performs."""

    _driver: Driver


class Async(Operations):
    """Operations that the asyncio driver performs."""

    _driver: AsyncDriver


class operation(Generic[P, T]):  # noqa: N801  # it is used as a decorator
    """Decorator for a method that returns a plan: a call performs the plan and returns its answer."""

    def __init__(self, plan: Callable[Concatenate[Any, P], Plan[T]]) -> None:
        self.plan = plan
        update_wrapper(self, plan)  # type: ignore[arg-type]

        @wraps(plan)
        def call(bound: Any, *args: Any, **kwargs: Any) -> Any:
            return bound._driver.run(plan(bound, *args, **kwargs))

        self._call = call

    @overload
    def __get__(self, bound: None, owner: type) -> Self: ...
    @overload
    def __get__(self, bound: Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, bound: Async, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, bound: Any, owner: type) -> Any:
        return self if bound is None else MethodType(self._call, bound)


class flow(Generic[P, T]):  # noqa: N801  # it is used as a decorator
    """Decorator for a method that returns a flow: a call returns a stream of its items."""

    def __init__(self, plan: Callable[Concatenate[Any, P], Flow[T]]) -> None:
        self.plan = plan
        update_wrapper(self, plan)  # type: ignore[arg-type]

        @wraps(plan)
        def call(bound: Any, *args: Any, **kwargs: Any) -> Any:
            return bound._driver.stream(plan(bound, *args, **kwargs))

        self._call = call

    @overload
    def __get__(self, bound: None, owner: type) -> Self: ...
    @overload
    def __get__(self, bound: Blocking, owner: type) -> Callable[P, Stream[T]]: ...
    @overload
    def __get__(self, bound: Async, owner: type) -> Callable[P, AsyncStream[T]]: ...
    def __get__(self, bound: Any, owner: type) -> Any:
        return self if bound is None else MethodType(self._call, bound)
