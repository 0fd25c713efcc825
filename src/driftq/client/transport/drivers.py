"""The two drivers that perform plans: one blocks, one runs on an asyncio loop. All code that differs is in this module.

`timeout` is the time of a whole call: connecting, sending, waiting for the answer, and the pauses and retries after a
failure. A stream has no such limit; it has a limit for the time without bytes from the server.
"""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, Generic, Self, TypeVar, cast

from driftq.client.errors import ClientError, ClosedError, ProtocolError, TransportError
from driftq.client.transport.closing import AsyncClosing, Closing
from driftq.client.transport.plan import Action, Emit, EmitAll, Flow, Open, Pause, Plan, Pull, Request, Response
from driftq.system.http_client import http_async, http_blocking
from driftq.system.http_client.http1 import BodyTooLongError, HttpError
from driftq.system.http_client.server_address import ServerAddress

T = TypeVar("T")


def _next(plan: Any, outcome: object) -> Any:
    """Resume a plan with `outcome` and return its next action. Raise StopIteration with the answer at its end."""
    return plan.throw(outcome) if isinstance(outcome, ClientError) else plan.send(outcome)


def _head(address: ServerAddress, request: Request) -> bytes:
    return address.head.request(request.method, request.path, request.query, request.headers, request.content)


def _response(request: Request, reply: http_blocking.Reply) -> Response:
    status, headers, content = reply
    if request.takes_view and status < 300:
        return Response(status, headers, cast("bytes", content))
    return Response(status, headers, bytes(content))


def _failed(address: ServerAddress, error: HttpError, *, closed: bool) -> ClientError:
    """Return the exception to throw into a plan whose action failed."""
    failure: ClientError
    if closed:
        failure = ClosedError("the client is closed")
    elif isinstance(error, BodyTooLongError):
        failure = ProtocolError(f"the answer of {address.url} cannot be used: {error}")
    else:
        failure = TransportError(f"no answer from {address.url}: {error}", sent=error.sent)
    failure.__cause__ = error.__cause__ or error
    return failure


class Driver:
    """Performs plans with blocking calls. Several threads may use it at the same time."""

    def __init__(self, address: ServerAddress) -> None:
        self.address = address
        self.pool = http_blocking.BlockingPool(address.endpoint)
        self.pausing: set[threading.Event] = set()
        """One event for each plan that waits for its next try; setting it ends the wait."""

    def run(self, plan: Plan[T]) -> T:
        """Perform a plan and return its answer."""
        line = _Line(self)
        try:
            action = plan.send(None)
            while True:
                action = _next(plan, line.perform(action))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            line.shut()

    def stream(self, flow: Flow[T]) -> "Stream[T]":
        """Return an iterator over the items of a flow."""
        return Stream(self, flow)

    def close(self) -> None:
        """Close all connections. Calls and streams that wait in other threads end with a ClosedError."""
        self.pool.close()
        for pause in list(self.pausing):
            pause.set()


class _Line:
    """The network connections of one plan: one call at a time, and at most one open stream."""

    __slots__ = ("_address", "_calling", "_deadline", "_driver", "_ended", "_pausing", "_pool", "_silence_s", "_stream")

    def __init__(self, driver: Driver) -> None:
        self._driver, self._pool, self._address = driver, driver.pool, driver.address
        self._deadline = 0.0
        """When the current call, with its retries, must have ended."""
        self._calling: http_blocking.BlockingConnection | None = None
        """The connection of the current call."""
        self._stream: http_blocking.BlockingConnection | None = None
        self._silence_s = 0.0
        self._ended = False
        self._pausing: threading.Event | None = None

    def perform(self, action: Action) -> object:
        """Perform an action; return its result, or the exception to throw into the plan."""
        try:
            if isinstance(action, Request):
                if not action.again:
                    self._deadline = http_blocking.now() + self._address.timeout_s + action.wait_s
                return self._call(action)
            if isinstance(action, Pull):
                return b"" if self._stream is None else self._stream.pull(http_blocking.now() + self._silence_s)
            if isinstance(action, Open):
                return self._open(action)
            if isinstance(action, Pause):
                return self._pause(action)
        except HttpError as error:
            return _failed(self._address, error, closed=self._pool.closed)
        self.shut()
        return None

    def _call(self, request: Request) -> Response:
        head = _head(self._address, request)
        connection = self._calling = self._pool.take()
        try:
            if self._ended:  # checked after the connection is known to `end`
                connection.interrupt()
            return _response(request, connection.exchange(request.method, head, request.content, self._deadline))
        finally:
            self._calling = None
            self._pool.give_back(connection)

    def _open(self, action: Open) -> Response:
        self.shut()
        request = action.request
        deadline = http_blocking.now() + min(self._address.timeout_s, action.silence_s)
        head = _head(self._address, request)
        self._silence_s = action.silence_s
        stream = self._stream = self._pool.take()
        if self._ended:  # checked after the connection is known to `end`
            stream.interrupt()
        status, headers = stream.begin(request.method, head, request.content, deadline)
        return Response(status, headers, b"" if status < 300 else bytes(stream.remainder(deadline)))

    def _pause(self, pause: Pause) -> bool:
        if pause.in_call and http_blocking.now() + pause.seconds >= self._deadline:
            return False
        waiting = self._pausing = threading.Event()
        self._driver.pausing.add(waiting)
        try:
            if not self._ended and not self._pool.closed:
                waiting.wait(pause.seconds)
        finally:
            self._driver.pausing.discard(waiting)
        return True

    def shut(self) -> None:
        """Close the open stream, if there is one, and give its connection back."""
        stream, self._stream = self._stream, None
        if stream is not None:
            self._pool.give_back(stream)

    def end(self) -> None:
        """End the wait of another thread that performs an action here."""
        self._ended = True
        pausing = self._pausing
        if pausing is not None:
            pausing.set()
        for connection in (self._calling, self._stream):
            if connection is not None:
                connection.interrupt()

    def check(self) -> None:
        """Raise StopIteration if `end` was called."""
        if self._ended:
            raise StopIteration


class Stream(Closing, Generic[T]):
    """An iterator over the items of a flow. Close it, or use it with `with`, if you stop before its end.

    Any thread may call `close`; a thread that waits for the next item then sees the end of the stream.
    """

    def __init__(self, driver: Driver, flow: Flow[T]) -> None:
        self._flow, self._line = flow, _Line(driver)
        self._outcome: object = None
        self._items: Iterator[T] = iter(())
        """Items that the flow has produced and the caller has not received yet."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        for item in self._items:
            return item
        try:
            while True:
                action = _next(self._flow, self._outcome)
                if isinstance(action, Emit | EmitAll):
                    self._outcome = None
                    self._items = items = iter((action.item,) if isinstance(action, Emit) else action.items)
                    self._line.check()
                    for item in items:
                        return item
                else:
                    self._outcome = self._line.perform(action)
                    self._line.check()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the stream and give its connection back."""
        self._line.end()
        self._items = iter(())
        try:
            self._flow.close()
        except ValueError:
            return  # another thread runs the flow and closes it when it sees the end
        self._line.shut()


class AsyncDriver:
    """Performs plans on the asyncio loop that is running."""

    def __init__(self, address: ServerAddress) -> None:
        self.address = address
        self.pool = http_async.AsyncPool(address.endpoint)
        self.pausing: set[asyncio.Event] = set()
        """One event for each plan that waits for its next try; setting it ends the wait."""

    async def run(self, plan: Plan[T]) -> T:
        """Perform a plan and return its answer."""
        line = _AsyncLine(self)
        try:
            action = plan.send(None)
            while True:
                action = _next(plan, await line.perform(action))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            line.shut()

    def stream(self, flow: Flow[T]) -> "AsyncStream[T]":
        """Return an iterator over the items of a flow."""
        return AsyncStream(self, flow)

    async def close(self) -> None:
        """Close all connections. Calls and streams that wait in other tasks end with a ClosedError."""
        self.pool.close()
        for pause in self.pausing:
            pause.set()
        await asyncio.sleep(0)  # transports close in the next turn of the loop


class _AsyncLine:
    """The network connections of one plan: one call at a time, and at most one open stream."""

    __slots__ = (
        *("_address", "_calling", "_deadline", "_driver", "_ended", "_now", "_pausing", "_pool", "_silence_s"),
        "_stream",
    )

    def __init__(self, driver: AsyncDriver) -> None:
        self._driver, self._pool, self._address = driver, driver.pool, driver.address
        self._now = asyncio.get_running_loop().time
        self._deadline = 0.0
        """When the current call, with its retries, must have ended."""
        self._calling: http_async.AsyncConnection | None = None
        """The connection of the current call."""
        self._stream: http_async.AsyncConnection | None = None
        self._silence_s = 0.0
        self._pausing: asyncio.Event | None = None
        self._ended = False

    async def perform(self, action: Action) -> object:
        """Perform an action; return its result, or the exception to throw into the plan."""
        try:
            if isinstance(action, Request):
                if not action.again:
                    self._deadline = self._now() + self._address.timeout_s + action.wait_s
                return await self._call(action)
            if isinstance(action, Pull):
                return b"" if self._stream is None else await self._stream.pull(self._now() + self._silence_s)
            if isinstance(action, Open):
                return await self._open(action)
            if isinstance(action, Pause):
                return await self._pause(action)
        except HttpError as error:
            return _failed(self._address, error, closed=self._pool.closed)
        self.shut()
        return None

    async def _call(self, request: Request) -> Response:
        head = _head(self._address, request)
        connection = self._calling = self._pool.take()
        try:
            return _response(request, await connection.exchange(request.method, head, request.content, self._deadline))
        finally:
            self._calling = None
            self._pool.give_back(connection)

    async def _open(self, action: Open) -> Response:
        self.shut()
        request, deadline = action.request, self._now() + min(self._address.timeout_s, action.silence_s)
        head = _head(self._address, request)
        self._silence_s = action.silence_s
        stream = self._stream = self._pool.take()
        status, headers = await stream.begin(request.method, head, request.content, deadline)
        return Response(status, headers, b"" if status < 300 else bytes(await stream.remainder(deadline)))

    async def _pause(self, pause: Pause) -> bool:
        if pause.in_call and self._now() + pause.seconds >= self._deadline:
            return False
        if pause.seconds <= 0 or self._pool.closed:
            await asyncio.sleep(0)
            return True
        waiting = self._pausing = asyncio.Event()
        self._driver.pausing.add(waiting)
        try:
            async with asyncio.timeout(pause.seconds):
                await waiting.wait()
        except TimeoutError:
            pass  # the pause is over
        finally:
            self._driver.pausing.discard(waiting)
        return True

    def shut(self) -> None:
        """Close the open stream, if there is one, and give its connection back."""
        stream, self._stream = self._stream, None
        if stream is not None:
            self._pool.give_back(stream)

    def end(self) -> None:
        """End the wait of another task that performs an action here."""
        self._ended = True
        if self._pausing is not None:
            self._pausing.set()
        for connection in (self._calling, self._stream):
            if connection is not None:
                connection.interrupt()

    def check(self) -> None:
        """Raise StopIteration if `end` was called."""
        if self._ended:
            raise StopIteration


class AsyncStream(AsyncClosing, Generic[T]):
    """An asynchronous iterator over the items of a flow, for `async for` and `async with`.

    Any task of the loop may call `close`; a task that waits for the next item then sees the end of the stream.
    """

    def __init__(self, driver: AsyncDriver, flow: Flow[T]) -> None:
        self._driver, self._flow = driver, flow
        self._line: _AsyncLine | None = None
        self._outcome: object = None
        self._items: Iterator[T] = iter(())
        """Items that the flow has produced and the caller has not received yet."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        for item in self._items:
            return item
        line = self._line = self._line or _AsyncLine(self._driver)
        try:
            while True:
                action = _next(self._flow, self._outcome)
                if isinstance(action, Emit | EmitAll):
                    self._outcome = None
                    self._items = iter((action.item,) if isinstance(action, Emit) else action.items)
                    for item in self._items:
                        return item
                else:
                    self._outcome = await line.perform(action)
                    line.check()
        except StopIteration:
            await self.close()
            raise StopAsyncIteration from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the stream and give its connection back."""
        self._items = iter(())
        self._flow.close()
        if self._line is not None:
            self._line.end()
            self._line.shut()
