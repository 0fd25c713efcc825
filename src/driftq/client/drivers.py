"""The two ways to perform a plan, over httpx: blocking and asynchronous. All that they do not share is in here."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, Generic, Self, TypeVar

import httpx
from msgspec import Struct

from driftq import __version__
from driftq.client.closing import AsyncClosing, Closing
from driftq.client.errors import TransportError
from driftq.client.plan import Action, Emit, Flow, Open, Pause, Plan, Pull, Request, Response, Shut

T = TypeVar("T")

_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
_CONNECT_S_MAX = 10.0
_FIRST_SIGN, _LAST_SIGN = "!", "~"
"""Of a key: what a header may have without quotes."""
_IDLE_S = 30.0
"""A connection that was idle for so long is not used again: the server might be closing it at this moment."""


class Address(Struct, frozen=True):
    """Where the server is, and how long it may take. The key is in no repr."""

    url: str
    api_key: str | None
    timeout_s: float

    @staticmethod
    def of(url: str, api_key: str | None, timeout_s: float) -> "Address":
        """What was given, checked: a key without the end of its line. Raises ValueError, which never tells the key."""
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise ValueError(f"{url!r} is no address of a server: {error}") from None
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError(f"{url!r} is no address of a server: it is like http://127.0.0.1:4000")
        key = (api_key or "").strip()
        if not all(_FIRST_SIGN <= sign <= _LAST_SIGN for sign in key):
            raise ValueError("the API key has a sign that none has: a blank, a control character or one beyond ASCII")
        return Address(url.rstrip("/"), key or None, timeout_s)

    def __repr__(self) -> str:
        return f"Address({self.url!r})"

    def timeout(self, read_s: float) -> httpx.Timeout:
        """As httpx wants it."""
        return httpx.Timeout(self.timeout_s, connect=min(self.timeout_s, _CONNECT_S_MAX), read=read_s)

    def options(self) -> dict[str, Any]:
        """How both kinds of httpx client are made: straight to the server, whatever proxies the environment names, and
        without compression, which costs more than it saves on the way to one's own server.
        """
        headers = {"accept-encoding": "identity", "user-agent": f"driftq-python/{__version__}"}
        if self.api_key is not None:
            headers["authorization"] = f"Bearer {self.api_key}"
        return {
            "base_url": self.url,
            "headers": headers,
            "timeout": self.timeout(self.timeout_s),
            "limits": httpx.Limits(max_connections=None, keepalive_expiry=_IDLE_S),
            "trust_env": False,
        }

    def asked(self, http: httpx.Client | httpx.AsyncClient, action: Request | Open) -> httpx.Request:
        """An action as a request of httpx."""
        if isinstance(action, Open):
            request, read_s = action.request, action.silence_s
        else:
            request, read_s = action, self.timeout_s + action.wait_s
        return http.build_request(
            request.method,
            request.path,
            params=request.query or None,
            headers=dict(request.headers),
            content=request.content,
            timeout=self.timeout(read_s),
        )

    def failed(self, error: httpx.HTTPError) -> TransportError:
        """What a plan is told of it."""
        told = str(error) or type(error).__name__
        return TransportError(f"no answer from {self.url}: {told}", sent=not isinstance(error, _UNSENT))


def _answered(reply: httpx.Response, content: bytes) -> Response:
    return Response(reply.status_code, reply.headers, content)


def _next(plan: Any, outcome: object) -> Any:
    """The next action of a plan that has got `outcome`. Raises StopIteration with its answer."""
    return plan.throw(outcome) if isinstance(outcome, TransportError) else plan.send(outcome)


class Driver:
    """Performs plans by blocking. May be used by many threads."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.http = httpx.Client(**address.options())

    def run(self, plan: Plan[T]) -> T:
        """The answer of a plan."""
        line, outcome = _Line(self), None
        try:
            while True:
                outcome = line.perform(_next(plan, outcome))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            line.shut()

    def stream(self, flow: Flow[T]) -> "Stream[T]":
        """The items of a flow."""
        return Stream(self, flow)

    def close(self) -> None:
        """Let go of all connections."""
        self.http.close()


class _Line:
    """The stream that one plan may have open."""

    def __init__(self, driver: Driver) -> None:
        self._http, self._address = driver.http, driver.address
        self._reply: httpx.Response | None = None
        self._chunks: Iterator[bytes] = iter(())

    def perform(self, action: Action) -> object:
        """What came of it."""
        try:
            match action:
                case Request():
                    reply = self._http.send(self._address.asked(self._http, action))
                    return _answered(reply, reply.content)
                case Open():
                    return self._opened(self._address.asked(self._http, action))
                case Pull():
                    return next(self._chunks, b"")
                case Pause():
                    threading.Event().wait(action.seconds)
                case Shut():
                    self.shut()
        except httpx.HTTPError as error:
            return self._address.failed(error)
        return None

    def _opened(self, request: httpx.Request) -> Response:
        self.shut()
        reply = self._http.send(request, stream=True)
        self._reply, self._chunks = reply, reply.iter_raw()
        return _answered(reply, b"" if reply.is_success else reply.read())

    def shut(self) -> None:
        """Let go."""
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.close()


class Stream(Closing, Generic[T]):
    """What a flow gives, one item after the other. Close it, or use it as a context, when you stop before its end."""

    def __init__(self, driver: Driver, flow: Flow[T]) -> None:
        self._flow, self._line = flow, _Line(driver)
        self._outcome: object = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        try:
            while not isinstance(action := _next(self._flow, self._outcome), Emit):
                self._outcome = self._line.perform(action)
        except BaseException:
            self.close()
            raise
        self._outcome = None
        item: T = action.item
        return item

    def close(self) -> None:
        """No more items."""
        self._flow.close()
        self._line.shut()


class AsyncDriver:
    """Performs plans on the running asyncio loop."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.http = httpx.AsyncClient(**address.options())

    async def run(self, plan: Plan[T]) -> T:
        """The answer of a plan."""
        line, outcome = _AsyncLine(self), None
        try:
            while True:
                outcome = await line.perform(_next(plan, outcome))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            await line.shut()

    def stream(self, flow: Flow[T]) -> "AsyncStream[T]":
        """The items of a flow."""
        return AsyncStream(self, flow)

    async def close(self) -> None:
        """Let go of all connections."""
        await self.http.aclose()


class _AsyncLine:
    """The same as `_Line`, without blocking."""

    def __init__(self, driver: AsyncDriver) -> None:
        self._http, self._address = driver.http, driver.address
        self._reply: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None

    async def perform(self, action: Action) -> object:
        """What came of it."""
        try:
            return await self._perform(action)
        except httpx.HTTPError as error:
            return self._address.failed(error)

    async def _perform(self, action: Action) -> object:
        if isinstance(action, Request):
            reply = await self._http.send(self._address.asked(self._http, action))
            return _answered(reply, reply.content)
        if isinstance(action, Open):
            return await self._opened(self._address.asked(self._http, action))
        if isinstance(action, Pull):
            return b"" if self._chunks is None else await anext(self._chunks, b"")
        await (asyncio.sleep(action.seconds) if isinstance(action, Pause) else self.shut())
        return None

    async def _opened(self, request: httpx.Request) -> Response:
        await self.shut()
        reply = await self._http.send(request, stream=True)
        self._reply, self._chunks = reply, reply.aiter_raw()
        return _answered(reply, b"" if reply.is_success else await reply.aread())

    async def shut(self) -> None:
        """Let go."""
        reply, self._reply = self._reply, None
        if reply is not None:
            await reply.aclose()


class AsyncStream(AsyncClosing, Generic[T]):
    """The same as `Stream`, for `async for` and `async with`."""

    def __init__(self, driver: AsyncDriver, flow: Flow[T]) -> None:
        self._flow, self._line = flow, _AsyncLine(driver)
        self._outcome: object = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        try:
            while not isinstance(action := _next(self._flow, self._outcome), Emit):
                self._outcome = await self._line.perform(action)
        except StopIteration:
            await self.close()
            raise StopAsyncIteration from None
        except BaseException:
            await self.close()
            raise
        self._outcome = None
        item: T = action.item
        return item

    async def close(self) -> None:
        """No more items."""
        self._flow.close()
        await self._line.shut()
