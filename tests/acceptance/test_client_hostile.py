"""Both clients against servers that break every rule: a clear error in time, never a hang, never a wrong answer."""

import asyncio
import json
import os
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest

from driftq.client import AsyncClient, Client, ClientError, ProtocolError, TransportError
from driftq.client.errors import ClosedError
from driftq.client.transport.drivers import Stream
from driftq.system.http_client import http_async, http_blocking
from tests.support.hostile_server import CERTIFICATE, Play, heard, hostile, reply, says

TIMEOUT_S = 1.5


def call(kind: str, url: str, times: int = 1, **options: Any) -> list[bytes]:
    """What GET /v0/health gives, so many times on one client without retries."""
    if kind == "blocking":
        with Client(url, timeout=TIMEOUT_S, retries=0, **options) as client:
            return [client.request("GET", "/v0/health").content for _ in range(times)]

    async def use() -> list[bytes]:
        async with AsyncClient(url, timeout=TIMEOUT_S, retries=0, **options) as client:
            return [(await client.request("GET", "/v0/health")).content for _ in range(times)]

    return asyncio.run(use())


def endless_head(connection: socket.socket, _: int) -> None:
    heard(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for _ in range(1600):
        connection.sendall(b"x-%s: y\r\n" % (b"a" * 65000))


def drip(connection: socket.socket, _: int) -> None:
    """A byte every 100 ms: never silent for long, never done."""
    heard(connection)
    for byte in b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n" + b"x" * 1000:
        connection.sendall(bytes([byte]))
        time.sleep(0.1)


def reset(connection: socket.socket, _: int) -> None:
    heard(connection)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


BROKEN: dict[str, Play] = {
    "it hangs up": says(),
    "it hangs up in its head": says(b"HTTP/1.1 200 OK\r\ncontent-"),
    "it hangs up in its body": says(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"),
    "it hangs up in a chunk": says(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\na\r\nhalf"),
    "it resets": reset,
    "it speaks another protocol": says(b"220 mail.example ESMTP\r\n", linger=True),
    "it says garbage": says(os.urandom(4096).replace(b"HTTP", b"ptth"), linger=True),
    "its head has no end": endless_head,
    "it says two lengths": says(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab", linger=True),
    "it upgrades": says(b"HTTP/1.1 101 S\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", linger=True),
    "it says nothing": says(linger=True),
    "it stops in its head": says(b"HTTP/1.1 200 OK\r\n", linger=True),
    "it stops in its body": says(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf", linger=True),
    "it drips": drip,
    "it hangs up in a large body": says(b"HTTP/1.1 200 OK\r\ncontent-length: 9000000\r\n\r\n", b"x" * 8_999_999),
    "it stops in a large body": says(b"HTTP/1.1 200 OK\r\ncontent-length: 9000000\r\n\r\n", b"half", linger=True),
    "its body is larger than it ever comes": says(b"HTTP/1.1 200 OK\r\ncontent-length: 999999999999\r\n\r\n", b"half"),
}


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
@pytest.mark.parametrize("play", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_server_is_a_clear_error_in_time(play: Play, kind: str) -> None:
    began = time.monotonic()
    with hostile(play) as url, pytest.raises(TransportError, match=f"no answer from {url}: ") as failed:
        call(kind, url)
    assert failed.value.__cause__ is not None
    assert failed.value.sent
    assert time.monotonic() - began < TIMEOUT_S + 1.0


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
def test_a_server_that_is_not_there_has_seen_nothing(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(TransportError, match="cannot be reached") as failed:
        call(kind, url)
    assert not failed.value.sent
    assert isinstance(failed.value.__cause__, OSError)


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
def test_odd_but_right_answers_are_taken(kind: str) -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"
    with hostile(says(*(bytes([byte]) for byte in interim + reply(b"whole")))) as url:
        assert call(kind, url) == [b"whole"]
    with hostile(says(b"HTTP/1.1 200 OK\r\n\r\nto the ", b"end")) as url:
        assert call(kind, url) == [b"to the end"]
    with hostile(
        says(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n1;x\r\nb\r\n0\r\nt: x\r\n\r\n")
    ) as url:
        assert call(kind, url) == [b"ab"]


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
@pytest.mark.parametrize("surplus", [reply(b"planted"), b"\r\n\r\nplanted", b"x"])
def test_what_comes_after_an_answer_is_never_the_next_one(surplus: bytes, kind: str) -> None:
    def play(connection: socket.socket, number: int) -> None:
        for asked in range(100):
            heard(connection)
            connection.sendall(reply(b"%d.%d" % (number, asked)) + (surplus if number == 0 else b""))

    with hostile(play) as url:
        assert call(kind, url, 3) == [b"0.0", b"1.0", b"1.1"]


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
def test_large_answers_are_whole_and_leave_the_connection_as_small_ones_do(kind: str) -> None:
    large = os.urandom(1 << 20) * 6 + b"end"
    answers = [large, b"", large[1:], b"small", large]

    def play(connection: socket.socket, number: int) -> None:
        for asked in range(100):
            heard(connection)
            body = answers[asked] if number == 0 else b"another connection"
            connection.sendall(reply(body))

    with hostile(play) as url:
        found = call(kind, url, len(answers))
    assert found == answers
    assert {type(content) for content in found} == {bytes}


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
@pytest.mark.parametrize("surplus", [reply(b"planted"), b"x"])
def test_what_comes_after_a_large_answer_is_never_the_next_one(surplus: bytes, kind: str) -> None:
    large = bytes(5 << 20)

    def play(connection: socket.socket, number: int) -> None:
        for asked in range(100):
            heard(connection)
            if number == 0:
                # The surplus is there with the last bytes of the answer.
                connection.sendall(reply(large)[:-10])
                connection.sendall(large[-10:] + surplus)
            else:
                connection.sendall(reply(b"%d.%d" % (number, asked)))

    with hostile(play) as url:
        assert call(kind, url, 3) == [large, b"1.0", b"1.1"]


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
def test_what_comes_while_a_connection_is_idle_is_never_the_next_answer(kind: str) -> None:
    answered, planted = threading.Event(), threading.Event()

    def play(connection: socket.socket, number: int) -> None:
        heard(connection)
        connection.sendall(reply(b"%d" % number))
        if number == 0:
            answered.wait()
            connection.sendall(reply(b"planted"))
            planted.set()
        heard(connection)

    def twice() -> list[bytes]:
        with Client(url, timeout=TIMEOUT_S, retries=0) as client:
            first = client.request("GET", "/").content
            answered.set()
            planted.wait()
            return [first, client.request("GET", "/").content]

    async def twice_async() -> list[bytes]:
        async with AsyncClient(url, timeout=TIMEOUT_S, retries=0) as client:
            first = (await client.request("GET", "/")).content
            answered.set()
            await asyncio.to_thread(planted.wait)
            return [first, (await client.request("GET", "/")).content]

    with hostile(play) as url:
        assert (twice() if kind == "blocking" else asyncio.run(twice_async())) == [b"0", b"1"]


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
def test_a_server_may_answer_before_it_has_the_whole_request(kind: str) -> None:
    def play(connection: socket.socket, _: int) -> None:
        connection.recv(100)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 20):
            pass

    body = b"x" * (8 << 20)

    def post() -> None:
        with Client(url, timeout=TIMEOUT_S, retries=0) as client:
            client.request("POST", "/", content=body)

    async def post_async() -> None:
        async with AsyncClient(url, timeout=TIMEOUT_S, retries=0) as client:
            await client.request("POST", "/", content=body)

    with hostile(play) as url, pytest.raises(ClientError, match="413"):
        post() if kind == "blocking" else asyncio.run(post_async())


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
def test_retries_and_pauses_share_the_time_of_the_call(kind: str) -> None:
    busy = b"HTTP/1.1 503 Busy\r\ncontent-length: 2\r\nretry-after: 1\r\n\r\n{}"
    asked: list[int] = []

    def play(connection: socket.socket, number: int) -> None:
        while True:
            heard(connection)
            asked.append(number)
            connection.sendall(busy)

    def ask() -> None:
        with Client(url, timeout=TIMEOUT_S, retries=50) as client:
            client.health()

    async def ask_async() -> None:
        async with AsyncClient(url, timeout=TIMEOUT_S, retries=50) as client:
            await client.health()

    began = time.monotonic()
    with hostile(play) as url, pytest.raises(ClientError, match="503"):
        ask() if kind == "blocking" else asyncio.run(ask_async())
    assert time.monotonic() - began < 2 * TIMEOUT_S
    assert len(asked) == 2


def close_after(asked: threading.Event, closing: Client | Stream[Any]) -> None:
    asked.wait()
    closing.close()


def test_close_from_another_thread_ends_a_call_that_waits() -> None:
    asked = threading.Event()

    def play(connection: socket.socket, _: int) -> None:
        heard(connection)
        asked.set()
        connection.recv(1)

    with hostile(play) as url:
        client = Client(url, timeout=30, retries=3)
        threading.Thread(target=close_after, args=(asked, client), daemon=True).start()
        began = time.monotonic()
        with pytest.raises(ClosedError):
            client.health()
        assert time.monotonic() - began < 5
        with pytest.raises(ClosedError):
            client.health()


BUSY = b"HTTP/1.1 503 Busy\r\ncontent-length: 2\r\nretry-after: 20\r\n\r\n{}"


def test_close_from_another_thread_ends_a_pause_between_two_tries() -> None:
    asked = threading.Event()

    def play(connection: socket.socket, _: int) -> None:
        heard(connection)
        connection.sendall(BUSY)
        asked.set()

    with hostile(play) as url:
        client = Client(url, timeout=30, retries=3)
        threading.Thread(target=close_after, args=(asked, client), daemon=True).start()
        began = time.monotonic()
        with pytest.raises(ClosedError):
            client.health()
        assert time.monotonic() - began < 5


def test_close_in_another_task_ends_a_pause_between_two_tries() -> None:
    async def use() -> float:
        client = AsyncClient(url, timeout=30, retries=3)
        call = asyncio.create_task(client.health())
        await asyncio.to_thread(asked.wait)
        began = time.monotonic()
        await asyncio.sleep(0.1)  # the answer is taken
        await client.close()
        with pytest.raises(ClosedError):
            await call
        return time.monotonic() - began

    asked = threading.Event()

    def play(connection: socket.socket, _: int) -> None:
        heard(connection)
        connection.sendall(BUSY)
        asked.set()

    with hostile(play) as url:
        assert asyncio.run(use()) < 5


def test_close_from_another_thread_ends_a_stream_that_waits() -> None:
    said = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
    asked = threading.Event()

    def play(connection: socket.socket, _: int) -> None:
        heard(connection)
        connection.sendall(said)
        asked.set()
        connection.recv(1)

    with hostile(play) as url, Client(url, timeout=30) as client:
        stream = client.broker.consume("t", "g")
        threading.Thread(target=close_after, args=(asked, stream), daemon=True).start()
        began = time.monotonic()
        assert list(stream) == []
        assert time.monotonic() - began < 5


def test_a_cancelled_call_leaves_no_answer_for_the_next() -> None:
    asked, cancelled = threading.Event(), threading.Event()

    def play(connection: socket.socket, number: int) -> None:
        while True:
            heard(connection)
            asked.set()
            if number == 0:
                cancelled.wait()
            connection.sendall(reply(b"%d" % number))

    async def use() -> bytes:
        async with AsyncClient(url, timeout=TIMEOUT_S, retries=0) as client:
            call = asyncio.create_task(client.request("GET", "/"))
            await asyncio.to_thread(asked.wait)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            cancelled.set()
            return (await client.request("GET", "/")).content

    with hostile(play) as url:
        assert asyncio.run(use()) == b"1"


def test_a_forked_child_has_connections_and_a_name_of_its_own() -> None:
    def play(connection: socket.socket, number: int) -> None:
        while True:
            heard(connection)
            connection.sendall(reply(b"%d" % number))

    with hostile(play) as url, Client(url, timeout=TIMEOUT_S, retries=0) as client:
        assert client.request("GET", "/").content == b"0"
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, client.request("GET", "/").content + b" " + client.node.encode())
            os._exit(0)
        os.waitpid(child, 0)
        other, _, node = os.read(reading, 1000).partition(b" ")
        assert (other, client.request("GET", "/").content) == (b"1", b"0")
        assert node.decode() != client.node
        os.close(reading)
        os.close(writing)


def test_handles_made_before_a_fork_have_the_childs_name_in_the_child() -> None:
    """A lease that the child takes is not the parent's."""
    asked: list[str] = []

    def play(connection: socket.socket, _: int) -> None:
        text = heard(connection)
        asked.append(json.loads(text.partition(b"\r\n\r\n")[2])["node"])
        connection.sendall(reply(b'{"topic":"t","claimed":[],"count":0,"performance":{}}'))

    with hostile(play) as url, Client(url, timeout=TIMEOUT_S, retries=0) as client:
        topic, named = client.topic("t"), Client(url, retries=0, node="given").topic("t")
        child = os.fork()
        if child == 0:
            with suppress(ClientError):
                topic.claim()
            with suppress(ClientError):
                named.claim()
            os._exit(0)
        os.waitpid(child, 0)
        with suppress(ClientError):
            topic.claim()
        assert asked[1:] == ["given", client.node]
        assert asked[0] != client.node
        assert f"-{child}-" in asked[0]


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
def test_the_environment_names_no_proxy(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with hostile(says(reply(b"straight"))) as url:
        assert call(kind, url) == [b"straight"]


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
def test_what_came_before_a_request_is_never_its_answer(kind: str) -> None:
    """Also if the loop has not read it yet: the server plants an answer, and the next call follows at once."""
    answered, planted = threading.Event(), threading.Event()

    def play(connection: socket.socket, number: int) -> None:
        heard(connection)
        connection.sendall(reply(b"%d" % number))
        if number == 0:
            answered.wait()
            connection.sendall(reply(b"planted"))
            planted.set()
        heard(connection)

    async def twice_async() -> list[bytes]:
        async with AsyncClient(url, timeout=TIMEOUT_S, retries=0) as client:
            first = (await client.request("GET", "/")).content
            answered.set()
            planted.wait()  # the loop does not run meanwhile
            return [first, (await client.request("GET", "/")).content]

    def twice() -> list[bytes]:
        with Client(url, timeout=TIMEOUT_S, retries=0) as client:
            first = client.request("GET", "/").content
            answered.set()
            planted.wait()
            return [first, client.request("GET", "/").content]

    with hostile(play) as url:
        assert (twice() if kind == "blocking" else asyncio.run(twice_async())) == [b"0", b"1"]


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
def test_a_burst_leaves_no_connections_that_are_idle_for_ever(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections at the bottom of the pool expire, although calls only use the one on top."""
    count = 4
    together = threading.Barrier(count)
    ended: Queue[int] = Queue()

    def play(connection: socket.socket, number: int) -> None:
        heard(connection)
        if number < count:
            together.wait(5)
        connection.sendall(reply(b""))
        while connection.recv(65536):
            connection.sendall(reply(b""))
        ended.put(number)

    monkeypatch.setattr(http_blocking, "IDLE_S", 0.3)
    monkeypatch.setattr(http_async, "IDLE_S", 0.3)

    def burst() -> set[int]:
        with Client(url, timeout=TIMEOUT_S, retries=0) as client:
            with ThreadPoolExecutor(count) as pool:
                list(pool.map(lambda _: client.request("GET", "/"), range(count)))
            closed: set[int] = set()
            until = time.monotonic() + 10
            while len(closed) < count - 1 and time.monotonic() < until:
                client.request("GET", "/")
                with suppress(Empty):
                    closed.add(ended.get(timeout=0.02))
            return closed

    async def burst_async() -> set[int]:
        async with AsyncClient(url, timeout=TIMEOUT_S, retries=0) as client:
            await asyncio.gather(*(client.request("GET", "/") for _ in range(count)))
            closed: set[int] = set()
            until = time.monotonic() + 10
            while len(closed) < count - 1 and time.monotonic() < until:
                await client.request("GET", "/")
                with suppress(Empty):
                    closed.add(await asyncio.to_thread(ended.get, timeout=0.02))
            return closed

    with hostile(play) as url:
        assert len(burst() if kind == "blocking" else asyncio.run(burst_async())) >= count - 1


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
def test_a_proxy_that_is_no_proxy_has_kept_the_request_from_the_server(kind: str) -> None:
    with hostile(says(b"220 mail.example ESMTP\r\n", linger=True)) as proxy, pytest.raises(TransportError) as failed:
        call(kind, "https://127.0.0.1:1", proxy=proxy)
    assert not failed.value.sent


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
def test_a_unix_socket_is_an_address(tmp_path: Path, kind: str) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    with hostile(says(reply(b"here")), listener) as url:
        assert call(kind, url) == [b"here"]


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
def test_a_proxy_is_asked_for_the_whole_address(kind: str) -> None:
    asked: list[bytes] = []

    def play(connection: socket.socket, _: int) -> None:
        asked.append(heard(connection))
        connection.sendall(reply(b"by proxy"))

    with hostile(play) as proxy:
        via = proxy.replace("http://", "http://user:pass@")
        assert call(kind, "http://driftq.example:4000", proxy=via) == [b"by proxy"]
    (head,) = asked
    assert head.startswith(b"GET http://driftq.example:4000/v0/health HTTP/1.1\r\nhost: driftq.example:4000\r\n")
    assert b"proxy-authorization: Basic dXNlcjpwYXNz\r\n" in head


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
@pytest.mark.parametrize("through_proxy", [False, True], ids=["straight", "by proxy"])
def test_tls_is_checked_both_ways(kind: str, *, through_proxy: bool) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=CERTIFICATE)
    context.load_cert_chain(CERTIFICATE)
    context.verify_mode = ssl.CERT_REQUIRED

    def play(connection: socket.socket, _: int) -> None:
        if through_proxy:
            assert heard(connection).startswith(b"CONNECT 127.0.0.1:")
            connection.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
        with context.wrap_socket(connection, server_side=True) as secured:
            heard(secured)
            secured.sendall(reply(b"safe"))

    with hostile(play) as url:
        secure = url.replace("http:", "https:")
        options: dict[str, Any] = {"proxy": url} if through_proxy else {}
        assert call(kind, secure, ca_file=CERTIFICATE, client_cert=CERTIFICATE, **options) == [b"safe"]
        with pytest.raises(TransportError, match=r"(?i)certificate"):
            call(kind, secure, **options)
        with pytest.raises(TransportError):
            call(kind, secure, ca_file=CERTIFICATE, **options)


def test_an_answer_of_something_else_is_a_protocol_error() -> None:
    with hostile(says(reply(b"<html>"))) as url, Client(url, retries=0) as client, pytest.raises(ProtocolError):
        client.health()
