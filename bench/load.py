"""Load over sockets: many connections, each with one request on its way, for a while. One process, prepared bytes.

What is measured is the server, so a connection does next to nothing: it sends bytes that were made before, and finds
the end of the reply.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import NamedTuple, cast

Measure = Callable[[bytes], int]
"""How long the reply is that begins like this, or 0 if that cannot be told yet."""


class Load(NamedTuple):
    """What a load came to."""

    replies: int
    seconds: float
    latencies: list[float]
    """Of every reply, in seconds."""

    @property
    def per_second(self) -> float:
        """Replies."""
        return self.replies / self.seconds

    def quantile(self, share: float) -> float:
        """The latency that this share of the replies stays below, in ms."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


class Caller(asyncio.Protocol):
    """One connection: ask, wait for the answer, ask again."""

    def __init__(self, requests: Iterator[bytes], measure: Measure, until: float) -> None:
        self._requests = requests
        self._measure = measure
        self._until = until
        self._beginning = b""
        """What came before the length could be told; of the rest only the length counts."""
        self._received = self._length = 0
        self._asked = 0.0
        self._transport: asyncio.Transport | None = None
        self.latencies: list[float] = []
        self.last = b""
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def _ask(self) -> None:
        assert self._transport is not None
        request = next(self._requests, None)
        if request is None or time.perf_counter() > self._until:
            self._transport.close()
            return
        self._asked = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        """A part of the answer."""
        self._received += len(data)
        if not self._length:
            self._beginning += data
            self._length = self._measure(self._beginning)
        if 0 < self._length <= self._received:
            self.latencies.append(time.perf_counter() - self._asked)
            self.last, self._beginning = self._beginning, b""
            self._received = self._length = 0
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        if exc is not None:
            self.done.set_exception(exc)
        else:
            self.done.set_result(None)


async def drive(
    address: tuple[str, int], requests: Sequence[Iterator[bytes]], measure: Measure, seconds: float
) -> Load:
    """One connection for each stream of requests, until the time is over or all are sent."""
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    callers = []
    for stream in requests:
        until = began + seconds
        _, caller = await loop.create_connection(lambda s=stream, u=until: Caller(s, measure, u), *address)  # type: ignore[misc]
        callers.append(caller)
    await asyncio.gather(*[caller.done for caller in callers])
    latencies = [latency for caller in callers for latency in caller.latencies]
    for caller in callers:
        check_reply(caller.last)
    return Load(len(latencies), time.perf_counter() - began, latencies)


def body(count: int, first: int, *, tags: bool = True) -> bytes:
    """The request of one write."""
    filling = b"x" * 85
    records = []
    for number in range(first, first + count):
        tag = b',"tag":"order-%d"' % number if tags else b""
        records.append(b'{"data":{"id":%d,"payload":"%b"}%b}' % (number, filling, tag))
    return b'{"records":[' + b",".join(records) + b"]}"


def check_reply(reply: bytes) -> None:
    """A benchmark of refusals would be a fast one."""
    if reply.startswith((b"-", b"HTTP/1.1 4", b"HTTP/1.1 5")):
        raise AssertionError(f"refused: {reply[:300]!r}")


def http_length(beginning: bytes) -> int:
    """Head, and as many bytes as it says."""
    end = beginning.find(b"\r\n\r\n")
    if end < 0:
        return 0
    head = beginning[:end].lower()
    start = head.find(b"content-length:") + len(b"content-length:")
    stop = head.find(b"\r\n", start)
    return end + 4 + int(head[start:stop] if stop >= 0 else head[start:])


def redis_length(count: int) -> Measure:
    """So many bulk strings, each the id of an entry in two lines: known when they are there."""
    return lambda beginning: len(beginning) if beginning.count(b"\r\n") >= 2 * count else 0


def http_request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    """The bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "host: bench", f"content-length: {len(body)}", *headers]
    if body and not any(line.lower().startswith("content-type") for line in headers):
        lines.append("content-type: application/json")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def again_and_again(requests: Sequence[bytes]) -> Iterator[bytes]:
    """For ever, from the first."""
    return cycle(requests)
