"""What both clients do with their connections: one send per call, reuse, also with TLS, and their own after a fork."""

import asyncio
import os
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from driftq.client import AsyncClient, Client
from driftq.system.http_client.http1 import Endpoint
from driftq.system.http_client.http_async import AsyncPool
from driftq.system.http_client.http_blocking import BlockingPool, now
from tests.support.hostile_server import CERTIFICATE, heard, hostile, reply

KINDS = pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
TLS = pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
WAIT_S = 10.0


@contextmanager
def counting(*, tls: bool = False) -> Iterator[str]:
    """A server that answers every request with the number of its connection, from 0; its address."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)

    def play(connection: socket.socket, number: int) -> None:
        with context.wrap_socket(connection, server_side=True) if tls else connection as line:
            while True:
                head, _, body = heard(line).partition(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                while len(body) < length:
                    body += line.recv(1 << 20)
                line.sendall(reply(b"%d" % number))

    with hostile(play) as url:
        yield url.replace("http:", "https:") if tls else url


@KINDS
@TLS
def test_calls_one_after_the_other_share_a_connection(kind: str, *, tls: bool) -> None:
    async def use() -> list[bytes]:
        async with AsyncClient(url, retries=0, ca_file=CERTIFICATE) as client:
            return [(await client.request("GET", "/")).content for _ in range(4)]

    def use_blocking() -> list[bytes]:
        with Client(url, retries=0, ca_file=CERTIFICATE) as client:
            return [client.request("GET", "/").content for _ in range(4)]

    with counting(tls=tls) as url:
        assert (use_blocking() if kind == "blocking" else asyncio.run(use())) == [b"0"] * 4


def in_a_child(work: Callable[[], bytes]) -> bytes:
    """What the work gives in a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, work())
        except BaseException as error:  # noqa: BLE001  # the parent shows it
            os.write(writing, repr(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    found = os.read(reading, 1000)
    os.close(reading)
    os.close(writing)
    return found


@KINDS
@TLS
def test_a_forked_child_has_a_connection_and_a_name_of_its_own(kind: str, *, tls: bool) -> None:
    """The connection of the parent serves the parent afterwards as before."""
    loop = asyncio.new_event_loop()

    def blocking() -> bytes:
        return client.request("GET", "/").content

    def on(loop: asyncio.AbstractEventLoop) -> bytes:
        return loop.run_until_complete(asynchronous.request("GET", "/")).content

    with counting(tls=tls) as url:
        client = Client(url, retries=0, timeout=WAIT_S, ca_file=CERTIFICATE)
        asynchronous = AsyncClient(url, retries=0, timeout=WAIT_S, ca_file=CERTIFICATE)
        ask = blocking if kind == "blocking" else lambda: on(loop)
        ask_in_child = blocking if kind == "blocking" else lambda: on(asyncio.new_event_loop())
        named: Client | AsyncClient = client if kind == "blocking" else asynchronous
        assert ask() == b"0"
        other, _, node = in_a_child(lambda: ask_in_child() + b" " + named.node.encode()).partition(b" ")
        assert (other, ask()) == (b"1", b"0")
        assert node.decode() != named.node
        client.close()
        loop.run_until_complete(asynchronous.close())
    loop.close()


class CountedSocket(socket.socket):
    """Keeps what is sent, except the answers of the server and what wakes a loop."""

    sent: list[bytes] = []  # noqa: RUF012  # of all instances

    def sendall(self, data: Any, *flags: int) -> None:
        self._keep(bytes(data))
        super().sendall(data, *flags)

    def send(self, data: Any, *flags: int) -> int:
        self._keep(bytes(data))
        return super().send(data, *flags)

    def _keep(self, data: bytes) -> None:
        if not data.startswith((b"HTTP/1.1", b"\0")):
            self.sent.append(data)


@KINDS
@pytest.mark.parametrize("size", [0, 1, 60_000, 64 << 10])
def test_head_and_body_up_to_64_kib_are_one_send(kind: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use() -> None:
        async with AsyncClient(url, retries=0) as client:
            await client.request("GET", "/")
            CountedSocket.sent.clear()
            await client.request("POST", "/", content=b"x" * size)

    def use_blocking() -> None:
        with Client(url, retries=0) as client:
            client.request("GET", "/")
            CountedSocket.sent.clear()
            client.request("POST", "/", content=b"x" * size)

    with counting() as url:
        monkeypatch.setattr(socket, "socket", CountedSocket)
        use_blocking() if kind == "blocking" else asyncio.run(use())
    (sent,) = CountedSocket.sent
    assert sent.startswith(b"POST / HTTP/1.1\r\n")
    assert sent.endswith(b"\r\n\r\n" + b"x" * size)


def steps_of(work: Callable[[], object]) -> int:
    """The number of lines of Python that the work runs."""
    count = 0

    def trace(_frame: object, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@KINDS
def test_a_pool_hands_out_a_connection_in_as_many_steps_however_many_it_has(kind: str) -> None:
    request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"

    def steps(endpoint: Endpoint, count: int) -> int:
        pool = BlockingPool(endpoint)
        taken = [pool.take() for _ in range(count)]
        for one in taken:
            one.exchange("GET", request, None, now() + WAIT_S)
        for one in taken:
            pool.give_back(one)
        found = steps_of(lambda: pool.give_back(pool.take()))
        pool.close()
        return found

    async def steps_async(endpoint: Endpoint, count: int) -> int:
        pool = AsyncPool(endpoint)
        taken = [pool.take() for _ in range(count)]
        for one in taken:
            await one.exchange("GET", request, None, asyncio.get_running_loop().time() + WAIT_S)
        for one in taken:
            pool.give_back(one)
        found = steps_of(lambda: pool.give_back(pool.take()))
        pool.close()
        return found

    with counting() as url:
        endpoint = Endpoint("127.0.0.1", int(url.rpartition(":")[2]))
        few, many = (
            steps(endpoint, count) if kind == "blocking" else asyncio.run(steps_async(endpoint, count))
            for count in (2, 60)
        )
    assert few == many > 0
