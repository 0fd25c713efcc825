"""Both clients while they connect: `close` ends every wait, and every wait counts towards the timeout of the call."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from driftq.client import AsyncClient, Client, TransportError
from driftq.client.errors import ClosedError
from driftq.client.transport.drivers import Stream
from tests.support.hostile_server import heard, hostile, reply, says

KINDS = pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
TIMEOUT_S = 1.5
LONG_S = 30.0
SOON_S = 5.0
"""Less than any limit of a call that is allowed `LONG_S`, and enough for a busy machine."""

Resolve = Callable[[str, int], list[str]]


def named(monkeypatch: pytest.MonkeyPatch, resolve: Resolve) -> None:
    """Let `resolve` give the addresses of the host `server.test`."""
    real = socket.getaddrinfo

    def found(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host != "server.test":
            return real(host, port, *args, **options)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (name, port)) for name in resolve(host, port)]

    monkeypatch.setattr(socket, "getaddrinfo", found)


@contextmanager
def unanswering(port: int = 0) -> Iterator[int]:
    """A port of 127.0.0.2 on which connections are never made, because the queue of the listener is full."""
    waiting = []
    with socket.socket() as listener:
        listener.bind(("127.0.0.2", port))
        listener.listen(0)
        for _ in range(4):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
            waiting.append(one)
        yield listener.getsockname()[1]
        for one in waiting:
            one.close()


def close_after(begun: threading.Event, closing: Client | Stream[Any]) -> None:
    begun.wait()
    closing.close()


def fails_after_close(kind: str, url: str, begun: threading.Event, **options: Any) -> float:
    """Close a client in the middle of a call once `begun` is set; return the seconds that the call then took."""

    async def use() -> float:
        client = AsyncClient(url, timeout=LONG_S, retries=3, **options)
        call = asyncio.create_task(client.health())
        await asyncio.to_thread(begun.wait)
        since = time.monotonic()
        await client.close()
        with pytest.raises(ClosedError):
            await call
        return time.monotonic() - since

    if kind == "asynchronous":
        return asyncio.run(use())
    client = Client(url, timeout=LONG_S, retries=3, **options)
    threading.Thread(target=close_after, args=(begun, client), daemon=True).start()
    since = time.monotonic()
    with pytest.raises(ClosedError):
        client.health()
    return time.monotonic() - since


@KINDS
@pytest.mark.parametrize("through_proxy", [False, True], ids=["TLS handshake", "proxy"])
def test_close_ends_a_call_that_waits_for_a_silent_peer_to_connect(kind: str, *, through_proxy: bool) -> None:
    begun = threading.Event()

    def play(connection: socket.socket, _: int) -> None:
        connection.recv(1)
        begun.set()
        while connection.recv(65536):
            pass

    with hostile(play) as url:
        secure = url.replace("http:", "https:")
        options = {"proxy": url} if through_proxy else {}
        assert fails_after_close(kind, secure, begun, **options) < SOON_S


@KINDS
def test_close_ends_a_call_whose_connection_is_not_accepted(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def resolve(_host: str, _port: int) -> list[str]:
        begun.set()
        return ["127.0.0.2"]

    named(monkeypatch, resolve)
    with unanswering() as port:
        assert fails_after_close(kind, f"http://server.test:{port}", begun) < SOON_S


@KINDS
def test_close_ends_a_call_that_looks_up_a_name(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, over = threading.Event(), threading.Event()

    def resolve(_host: str, _port: int) -> list[str]:
        begun.set()
        over.wait()
        return []

    named(monkeypatch, resolve)
    assert fails_after_close(kind, "http://server.test:1", begun) < SOON_S
    over.set()


@KINDS
def test_closing_a_watch_ends_its_wait_for_a_session(kind: str) -> None:
    begun = threading.Event()

    def play(connection: socket.socket, _: int) -> None:
        heard(connection)
        begun.set()
        connection.recv(1)

    def watch() -> list[Any]:
        with Client(url, timeout=LONG_S, retries=3) as client:
            stream = client.watch({"t": 0})
            threading.Thread(target=close_after, args=(begun, stream), daemon=True).start()
            return list(stream)

    async def watch_async() -> list[Any]:
        async with AsyncClient(url, timeout=LONG_S, retries=3) as client:
            stream = client.watch({"t": 0})

            async def items() -> list[Any]:
                return [item async for item in stream]

            reading = asyncio.create_task(items())
            await asyncio.to_thread(begun.wait)
            await stream.close()
            return await reading

    since = time.monotonic()
    with hostile(play) as url:
        assert (watch() if kind == "blocking" else asyncio.run(watch_async())) == []
    assert time.monotonic() - since < SOON_S


def first_of_a_stream(kind: str, url: str, timeout: float) -> object:
    """What a consumer gets first."""

    async def use() -> object:
        async with AsyncClient(url, timeout=timeout, retries=0) as client:
            return await anext(client.broker.consume("t", "g"))

    if kind == "asynchronous":
        return asyncio.run(use())
    with Client(url, timeout=timeout, retries=0) as client:
        return next(client.broker.consume("t", "g"))


def asked(kind: str, url: str, timeout: float) -> bytes:
    """What GET / gives."""

    async def use() -> bytes:
        async with AsyncClient(url, timeout=timeout, retries=0) as client:
            return (await client.request("GET", "/")).content

    if kind == "asynchronous":
        return asyncio.run(use())
    with Client(url, timeout=timeout, retries=0) as client:
        return client.request("GET", "/").content


@KINDS
def test_the_timeout_includes_the_lookup_of_the_name(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program also ends then, although the lookup goes on."""
    over = threading.Event()

    def resolve(_host: str, _port: int) -> list[str]:
        over.wait()
        return []

    named(monkeypatch, resolve)
    since = time.monotonic()
    with pytest.raises(TransportError, match="timed out") as failed:
        asked(kind, "http://server.test:1", TIMEOUT_S)
    over.set()
    assert not failed.value.sent
    assert time.monotonic() - since < TIMEOUT_S + 1.0


@KINDS
def test_a_name_that_is_not_known_is_a_clear_error(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(_host: str, _port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    named(monkeypatch, resolve)
    with pytest.raises(TransportError, match=r"server.test port 1 cannot be reached: .*not known") as failed:
        asked(kind, "http://server.test:1", TIMEOUT_S)
    assert not failed.value.sent


@KINDS
def test_the_next_address_is_tried_if_the_first_does_not_answer(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, lambda _host, _port: ["127.0.0.2", "127.0.0.1"])
    with hostile(says(reply(b"second"))) as url:
        port = int(url.rpartition(":")[2])
        with unanswering(port):
            assert asked(kind, f"http://server.test:{port}", 2 * TIMEOUT_S) == b"second"


@KINDS
def test_a_stream_waits_for_its_head_as_long_as_a_call_does(kind: str) -> None:
    since = time.monotonic()
    with hostile(says(linger=True)) as url, pytest.raises(TransportError, match="did not answer in time"):
        first_of_a_stream(kind, url, TIMEOUT_S)
    assert time.monotonic() - since < TIMEOUT_S + 1.0
