"""Generates load over sockets: many connections in one process, each with one request in flight, for a limited time.

The server is measured, so a connection does as little as possible: it sends prepared bytes and finds the end of the
reply. A refusal ends the run, because a server refuses faster than it works.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import NamedTuple, cast

from driftq.system.clock import SystemClock

Measure = Callable[[bytes], int]
"""Returns the length of a reply from its first bytes, or 0 if more bytes are needed."""

_now_ns = SystemClock.monotonic_ns
_REFUSALS = (b"-", b"HTTP/1.1 4", b"HTTP/1.1 5")


class RefusedError(Exception):
    """Raised with the server's reply when it refuses a request."""


class LoadGenerator(NamedTuple):
    """Result of one load run."""

    replies: int
    seconds: float
    latencies: list[float]
    """Latency of every reply, in seconds."""

    @property
    def per_second(self) -> float:
        """Return the number of replies per second."""
        return self.replies / self.seconds

    def quantile(self, share: float) -> float:
        """Return the latency in ms that a `share` of the replies does not exceed."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


class Caller(asyncio.Protocol):
    """One connection: sends a request, waits for the whole reply, sends the next."""

    def __init__(self, requests: Iterator[bytes], measure: Measure, until_ns: int) -> None:
        self._requests = requests
        self._measure = measure
        self._until_ns = until_ns
        self._beginning = b""
        """First bytes of the reply, kept until its length is known; later bytes are only counted."""
        self._received = self._length = 0
        self._asked_ns = 0
        self._transport: asyncio.Transport | None = None
        self.latencies: list[float] = []
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request on the new connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def _ask(self) -> None:
        assert self._transport is not None
        request = next(self._requests, None)
        if request is None or _now_ns() > self._until_ns:
            self._end(None)
            return
        self._asked_ns = _now_ns()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Count a part of the reply; after the last part, send the next request."""
        self._received += len(data)
        if not self._length:
            self._beginning += data
            self._length = self._measure(self._beginning)
        if 0 < self._length <= self._received:
            self.latencies.append((_now_ns() - self._asked_ns) / 1e9)
            if self._beginning.startswith(_REFUSALS):
                self._end(RefusedError(self._beginning.decode(errors="replace").rpartition("\r\n")[2]))
                return
            self._beginning = b""
            self._received = self._length = 0
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        """End with an error, unless the load has already ended."""
        self._end(exc or ConnectionResetError("the server closed the connection"))

    def _end(self, error: Exception | None) -> None:
        assert self._transport is not None
        self._transport.close()
        if not self.done.done():
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)


async def drive(
    address: tuple[str, int], requests: Sequence[Iterator[bytes]], measure: Measure, seconds: float
) -> LoadGenerator:
    """Open one connection for each stream of requests; send until the time is over or all requests are sent.

    Raise RefusedError or OSError.
    """
    loop = asyncio.get_running_loop()
    began_ns = _now_ns()
    until_ns = began_ns + round(seconds * 1e9)
    callers = []
    for stream in requests:
        _, caller = await loop.create_connection(lambda s=stream: Caller(s, measure, until_ns), *address)  # type: ignore[misc]
        callers.append(caller)
    await asyncio.gather(*[caller.done for caller in callers])
    latencies = [latency for caller in callers for latency in caller.latencies]
    return LoadGenerator(len(latencies), (_now_ns() - began_ns) / 1e9, latencies)


def http_length(beginning: bytes) -> int:
    """Return the length of an HTTP reply: its head plus its Content-Length, or 0 if the head is incomplete."""
    end = beginning.find(b"\r\n\r\n")
    if end < 0:
        return 0
    head = beginning[:end].lower()
    start = head.find(b"content-length:") + len(b"content-length:")
    stop = head.find(b"\r\n", start)
    return end + 4 + int(head[start:stop] if stop >= 0 else head[start:])


def http_request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    """Return the bytes of an HTTP/1.1 request."""
    lines = [f"{method} {path} HTTP/1.1", "host: driftq", f"content-length: {len(body)}", *headers]
    if body and not any(line.lower().startswith("content-type") for line in headers):
        lines.append("content-type: application/json")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def again_and_again(requests: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the requests in an endless cycle."""
    return cycle(requests)
