"""HTTP/1.1 exchanges on the running asyncio loop.

A pool keeps idle connections, the last used one on top, and returns one in constant time. It belongs to the loop on
which it is first used; on another loop it begins without connections. Every wait has a deadline in the time of the
loop. A task that is cancelled during an exchange closes its connection, because the next request on it would get the
rest of this answer. A forked child forgets the connections of its parent.

Bytes are read into a buffer that the connection keeps: asyncio would make a new one of 256 KiB for every read.
"""

import asyncio
import os
import select
from collections import deque
from contextlib import aclosing
from typing import cast
from weakref import WeakSet

from driftq.system.http_client import async_dialing
from driftq.system.http_client.dialing import CONNECT_S_MAX
from driftq.system.http_client.http1 import Endpoint, HttpError, ResponseReader
from driftq.system.http_client.http_blocking import CONTINUE_S_MAX, IDLE_S, Reply, expects_continue
from driftq.system.http_client.request_body import Body

_BUFFERED_BYTES_MAX = 256 << 10
"""While more bytes than this of a pulled body wait, the connection is not read."""
_READ_BYTES = 64 << 10
_LONG_READ_BYTES = 256 << 10
"""Size of the buffer after an answer has filled the smaller one."""


class AsyncConnection(asyncio.BufferedProtocol):
    """One connection, used by one task at a time. Its first exchange makes it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, endpoint: Endpoint) -> None:
        self._loop = loop
        self._endpoint = endpoint
        self._dialing: asyncio.Timeout | None = None
        """The limit of the time to connect, while a task connects."""
        self._reader = ResponseReader()
        self._transport: asyncio.Transport | None = None
        self._poll: select.poll | None = None
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._in_room = False
        """Whether incoming bytes go directly into the memory of a large body."""
        self._waiter: asyncio.Future[None] | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        """Fires at the deadline or before it. It is kept when a wait ends, so that not every wait costs a timer."""
        self._whole = True
        """Whether the task waits for the complete response, or for any more of it."""
        self._error: HttpError | None = None
        self._is_cut = False
        """Whether the last request was not sent completely."""
        self._reading_paused = self._writing_paused = False
        self._idle = True
        self.idle_since = 0.0

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport, and prepare to poll its socket."""
        self._transport = cast("asyncio.Transport", transport)
        connected = transport.get_extra_info("socket")
        if connected is not None:
            self._poll = select.poll()
            self._poll.register(connected.fileno(), select.POLLIN)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes: the memory of a large body that the task waits for, if there is one."""
        room = self._reader.room() if self._whole and not self._idle else None
        self._in_room = room is not None
        return self._buffer if room is None else room

    def buffer_updated(self, nbytes: int) -> None:
        """Process bytes, and wake the task if they are what it waits for."""
        if self._idle:
            self.abort()
            return
        reader = self._reader
        if self._in_room:
            reader.received(nbytes)
        else:
            data = bytes(self._buffer[:nbytes])
            if nbytes == _READ_BYTES:
                self._buffer = memoryview(bytearray(_LONG_READ_BYTES))
            try:
                reader.feed(data)
            except HttpError as error:
                self._fail(error)
                return
        if reader.complete or (not self._whole and (reader.head_complete or reader.continued)):
            self._wake()
        if not self._whole and not self._reading_paused and reader.buffered > _BUFFERED_BYTES_MAX:
            self._reading_paused = True
            self._open_transport().pause_reading()

    def pause_writing(self) -> None:
        """Stop sending until `resume_writing` is called."""
        self._writing_paused = True

    def resume_writing(self) -> None:
        """Continue sending, and wake the task."""
        self._writing_paused = False
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake the task, with an error if the response is incomplete."""
        if self._idle:
            return
        if exc is not None:
            broken = HttpError(f"the connection broke: {exc}", sent=True)
            broken.__cause__ = exc
            self._fail(broken)
            return
        try:
            self._reader.end()
        except HttpError as error:
            self._fail(error)
        else:
            self._wake()

    # Called by tasks

    def is_alive(self, now: float) -> bool:
        """Whether another request may be sent. If something arrives on an idle connection, the connection is ending."""
        if now - self.idle_since >= IDLE_S or self._open_transport().is_closing():
            return False
        # The loop may not have seen yet what has arrived.
        return self._poll is None or not self._poll.poll(0)

    async def exchange(self, method: str, head: bytes, body: bytes | Body | None, deadline: float) -> Reply:
        """Send a request and return the complete response. Raises HttpError, and what the pieces of a body raise."""
        if self._transport is None:
            await self._connect(deadline)
        reader = self._reader
        if isinstance(body, Body):
            await self.begin(method, head, body, deadline)
        else:
            self._send(method, head if body is None else head + body, whole=True)
        content = await self.remainder(deadline)
        return reader.status, reader.headers, content

    async def remainder(self, deadline: float) -> bytes | memoryview:
        """Return the rest of the body. Raises HttpError."""
        self._whole = True
        self._resume_reading()  # an answer that came while the body was being sent may have paused it
        while not self._reader.complete:
            await self._wait(deadline)
        return self._reader.take()

    async def begin(
        self, method: str, head: bytes, body: bytes | Body | None, deadline: float
    ) -> tuple[int, dict[str, str]]:
        """Send a request, wait for the head of the response. Raises HttpError, and what the pieces of a body raise."""
        if self._transport is None:
            await self._connect(deadline)
        if isinstance(body, Body):
            await self._send_pieces(method, head, body, deadline)
        else:
            self._send(method, head if body is None else head + body, whole=False)
        while not self._reader.head_complete:
            await self._wait(deadline)
        return self._reader.status, self._reader.headers

    async def pull(self, deadline: float) -> bytes:
        """Return the next bytes of the body, b"" at its end. Raises HttpError."""
        reader = self._reader
        while not (chunk := bytes(reader.take())) and not reader.complete:
            await self._wait(deadline)
        self._resume_reading()
        return chunk

    @property
    def reusable(self) -> bool:
        """Whether the response was read to its end, and the connection may carry another request."""
        return (
            self._error is None
            and not self._is_cut
            and self._reader.reusable
            and self._transport is not None
            and not self._transport.is_closing()
        )

    def rest(self) -> None:
        """Become idle: anything that arrives now ends the connection."""
        self._idle = True
        self.idle_since = self._loop.time()

    def abort(self) -> None:
        """Close at once, without sending what is queued."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()

    def interrupt(self) -> None:
        """Fail what a task waits for on this connection, also while it is made."""
        if self._dialing is not None and not self._dialing.expired():
            self._dialing.reschedule(self._loop.time())
        self._fail(HttpError("the client was closed", sent=True))

    async def _connect(self, deadline: float) -> None:
        """Connect to the server, through a proxy and with TLS if configured. Raises HttpError."""
        deadline = min(deadline, self._loop.time() + CONNECT_S_MAX)
        limit = self._dialing = asyncio.timeout_at(deadline)
        try:
            async with limit:
                transport = await async_dialing.made(self._endpoint, self._loop, self, deadline)
                if (tunnel := self._endpoint.tunnel()) is not None:
                    await self._open_tunnel(tunnel, deadline)
                    secured = await async_dialing.secured(self._endpoint, self._loop, transport, self)
                    self.connection_made(secured)
        except (OSError, ValueError, HttpError) as error:  # an HttpError: the answer of the proxy is not HTTP
            self.abort()
            reason = "timed out" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
            raise HttpError(f"{self._endpoint.name} cannot be reached: {reason}", sent=False) from error
        finally:
            self._dialing = None

    async def _open_tunnel(self, tunnel: bytes, deadline: float) -> None:
        status, _ = await self.begin("CONNECT", tunnel, None, deadline)
        if not 200 <= status < 300:
            raise OSError(f"the proxy answered with status {status}")
        self._reader = ResponseReader()  # what comes next is from the server
        self.rest()

    def _send(self, method: str, request: bytes, *, whole: bool) -> None:
        self._reader.expect(method)
        self._error, self._whole, self._idle, self._is_cut = None, whole, False, False
        self._open_transport().write(request)

    async def _send_pieces(self, method: str, head: bytes, body: Body, deadline: float) -> None:
        """Send a request with a body in pieces, to its end or until the server has answered.

        Raises HttpError, and what the pieces raise.
        """
        reader, write = self._reader, self._open_transport().write
        self._send(method, head, whole=False)
        self._is_cut = True
        limit = asyncio.timeout_at(deadline)
        try:
            async with limit:
                if expects_continue(head):
                    await self._continued(deadline)
                async with aclosing(body.sent_async()) as pieces:
                    while not reader.head_complete and self._error is None:
                        if (piece := await anext(pieces, None)) is None:
                            self._is_cut = False
                            return
                        write(piece)
                        while self._writing_paused and not reader.head_complete:
                            await self._wait(deadline)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise HttpError("the request could not be sent in time", sent=True) from error

    async def _continued(self, deadline: float) -> None:
        """Wait up to 1 s until the server asks for the body or has answered."""
        limit = asyncio.timeout(CONTINUE_S_MAX)
        try:
            async with limit:
                while not self._reader.continued and not self._reader.head_complete:
                    await self._wait(deadline)
        except TimeoutError:
            if not limit.expired():
                raise

    def _resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            self._open_transport().resume_reading()

    async def _wait(self, deadline: float) -> None:
        """Wait until the task is woken. Raises HttpError."""
        if self._error is None:
            self._waiter = self._loop.create_future()
            self._deadline = deadline
            timer = self._timer
            if timer is None or timer.when() > deadline:
                if timer is not None:
                    timer.cancel()
                self._timer = self._loop.call_at(deadline, self._expire)
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._error is not None:
            raise self._error

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: HttpError) -> None:
        if self._error is None and not self._reader.complete:
            self._error = error
        self.abort()
        self._wake()

    def _expire(self) -> None:
        timer, self._timer = self._timer, None
        if self._waiter is None:
            return
        if timer is not None and timer.when() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._expire)
            return
        self._fail(HttpError("the server did not answer in time", sent=True))

    def _open_transport(self) -> asyncio.Transport:
        assert self._transport is not None, "a connection is used once it is made"
        return self._transport


class AsyncPool:
    """Connections to one server, for the tasks of one loop at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: deque[AsyncConnection] = deque()
        self._busy: set[AsyncConnection] = set()
        self.closed = False
        _pools.add(self)

    def take(self) -> AsyncConnection:
        """Return a connection for one exchange; it must be given back. Raises HttpError."""
        if self.closed:
            raise HttpError("the client is closed", sent=False)
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._idle, self._busy = loop, deque(), set()
        now = loop.time()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_alive(now):
                break
            connection.abort()
        else:
            connection = AsyncConnection(loop, self._endpoint)
        self._busy.add(connection)
        return connection

    def give_back(self, connection: AsyncConnection) -> None:
        """Keep a connection for the next exchange if its response was read to the end; close it otherwise."""
        self._busy.discard(connection)
        if self.closed or not connection.reusable:
            connection.abort()
            return
        connection.rest()
        self._idle.append(connection)
        # The least recently used are at the bottom. Each call adds at most one and checks two, so all expired ones are
        # closed.
        for _ in range(2):
            if connection.idle_since - self._idle[0].idle_since < IDLE_S:
                return
            self._idle.popleft().abort()

    def close(self) -> None:
        """Close all connections. Exchanges that wait on one end with an HttpError. To be called on their loop."""
        self.closed = True
        for connection in list(self._busy):
            connection.interrupt()
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    def forget(self) -> None:
        """Begin without connections. They are not closed: they and their loop belong to the parent."""
        self._loop, self._idle, self._busy = None, deque(), set()


_pools: WeakSet[AsyncPool] = WeakSet()


def _forget_all() -> None:
    for pool in list(_pools):
        pool.forget()


os.register_at_fork(after_in_child=_forget_all)
