"""How one definition of an operation becomes a method of both clients, typed for each.

A set of operations is a class whose methods return plans, decorated with `operation` or `flow`. Two empty classes bind
it: with `Blocking` a call returns the answer, with `Async` something to await. Types follow: a type checker sees
`Callable[P, T]` on the one and `Callable[P, Coroutine[Any, Any, T]]` on the other.
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
    """What every set of operations works with."""

    def __init__(self, calls: Calls, driver: Any) -> None:
        self._calls = calls
        self._driver = driver

    @property
    def _node(self) -> str:
        """The name of the client. Not kept: in a forked child it is another."""
        return self._calls.node.current()


class Blocking(Operations):
    """Bound to the blocking driver."""

    _driver: Driver


class Async(Operations):
    """Bound to the asynchronous one."""

    _driver: AsyncDriver


class operation(Generic[P, T]):  # noqa: N801  # it is used as a decorator
    """A method that returns a plan, and is called for its answer."""

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
    """A method that returns a flow, and is called for its items."""

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
