"""Handlers of workers: whatever would be acked without having run is refused, and so is a misspelt option."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from driftq.client import AsyncClient, AsyncWorker, Client, Worker
from driftq.client.workers.handlers import check_outcome, run_plain


async def awaited(job: Any) -> None: ...


async def awaited_with(factor: int, job: Any) -> None: ...


class Awaited:
    async def __call__(self, job: Any) -> None: ...

    async def handle(self, job: Any) -> None: ...

    @staticmethod
    async def still(job: Any) -> None: ...

    @classmethod
    async def of_class(cls, job: Any) -> None: ...


@functools.cache
def cached(job: Any) -> None: ...


@functools.wraps(awaited)
def blocking(job: Any) -> None:
    asyncio.run(awaited(job))


class Plain:
    def __call__(self, job: Any) -> None: ...

    def handle(self, job: Any) -> None: ...


def yielding(job: Any) -> Iterator[int]:
    yield 1


async def yielding_async(job: Any) -> AsyncIterator[int]:
    yield 1


COROUTINES = {
    "function": awaited,
    "partial": functools.partial(awaited_with, 2),
    "partial of partial": functools.partial(functools.partial(awaited_with), 2),
    "object": Awaited(),
    "partial of object": functools.partial(Awaited()),
    "method": Awaited().handle,
    "static method": Awaited.still,
    "class method": Awaited.of_class,
    "partial of method": functools.partial(Awaited().handle),
}
PLAIN = {
    "lambda": lambda job: None,
    "builtin": print,
    "class": dict,
    "cached": cached,
    "decorated": blocking,
    "partial": functools.partial(Plain().handle),
    "object": Plain(),
    "method": Plain().handle,
    "appending": [].append,
}


def made(worker: Any, client: Any, handle: Any, **options: Any) -> list[Callable[[], object]]:
    """Both ways to make a worker."""
    return [
        lambda: worker.queue(client, "jobs", handle, **options),
        lambda: worker.group(client, "mail", "senders", handle, **options),
    ]


@pytest.fixture
def client() -> Iterator[Client]:
    with Client("http://127.0.0.1:1") as client:
        yield client


@pytest.mark.parametrize("kind", COROUTINES)
def test_a_worker_refuses_a_coroutine_function_where_it_is_given(client: Client, kind: str) -> None:
    """proves: G-CLIENT-1; row: F-WORKER-1"""
    for make in made(Worker, client, COROUTINES[kind]):
        with pytest.raises(TypeError, match="is a coroutine function, which Worker does not await; give it to AsyncW"):
            make()


@pytest.mark.parametrize("kind", PLAIN)
def test_a_worker_takes_what_is_callable_and_plain(client: Client, kind: str) -> None:
    for make in made(Worker, client, PLAIN[kind]):
        assert isinstance(make(), Worker)


@pytest.mark.parametrize("handle", [yielding, yielding_async, functools.partial(yielding)])
def test_no_worker_takes_a_generator_function(client: Client, handle: Any) -> None:
    for kind in (Worker, AsyncWorker):
        for make in made(kind, client, handle):
            with pytest.raises(TypeError, match="is a generator function; a handler returns, it does not yield"):
                make()


@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
def test_an_unknown_option_is_a_type_error(client: Client, kind: Any) -> None:
    handle = PLAIN["object"] if kind is Worker else awaited
    for make in made(kind, client, handle, concurency=3):
        with pytest.raises(TypeError, match="no option 'concurency'; the options are concurrency, drain_s, lease_ms"):
            make()


def test_an_async_worker_takes_coroutine_functions_and_what_returns_awaitables() -> None:
    async def take() -> None:
        async with AsyncClient("http://127.0.0.1:1") as client:
            for handle in [*COROUTINES.values(), lambda job: awaited(job)]:
                for make in made(AsyncWorker, client, handle):
                    assert isinstance(make(), AsyncWorker)

    asyncio.run(take())


def hidden(job: Any) -> Any:
    """As a decorator does that does not know coroutine functions."""
    return awaited(job)


def test_a_result_that_is_work_is_refused_and_closed() -> None:
    """A coroutine that is not closed would warn that it was never awaited, which is an error here."""
    with pytest.raises(TypeError, match="the handler hidden returned a coroutine instead of a result"):
        run_plain(hidden, "job")
    for outcome in (yielding("job"), yielding_async("job")):
        with pytest.raises(TypeError, match=f"returned a {type(outcome).__name__} instead of a result"):
            check_outcome(hidden, outcome)


@pytest.mark.parametrize("outcome", [None, "text", b"bytes", 0, 1.5, [], {}, (1,), object()])
def test_every_other_result_is_returned_as_it_is(outcome: object) -> None:
    assert check_outcome(print, outcome) is outcome
