"""The ASGI door: the same answers, streams and sockets behind somebody else's server."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from msgspec import json

from driftq.config import Settings
from driftq.http.answer import Answer, StreamAnswer, Upgrade
from driftq.http.app import App
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.transport.asgi import Asgi, Event
from driftq.http.transport.connection_context import Serving, Terms
from driftq.http.transport.outbox import HIGH_WATER
from driftq.server import Server
from driftq.system.clock import SystemClock
from driftq.system.disk import OsDisk
from driftq.system.runtime import AsyncioRuntime, Pending
from tests.unit.http.sources import Talk, Voice
from tests.unit.http.wire import BODY_BYTES_MAX, echo

PATIENCE_S = 10


class Host:
    """An ASGI server with one caller."""

    def __init__(self, handle: Callable[[Request], Answer]) -> None:
        runtime = AsyncioRuntime(asyncio.get_running_loop())
        self.serving = Serving(handle, runtime, Terms(body_bytes_max=BODY_BYTES_MAX))
        self.app = Asgi(self.serving)
        self.coming: asyncio.Queue[Event] = asyncio.Queue()
        self.sent: list[Event] = []
        self.headers = [(b"Accept", b"*/*")]
        self.reads = asyncio.Event()
        self.reads.set()
        self.task: asyncio.Task[None] | None = None

    async def send(self, event: Event) -> None:
        await self.reads.wait()
        self.sent.append(event)

    def start(self, scope: Event) -> None:
        self.task = asyncio.create_task(self.app(scope, self.coming.get, self.send))

    async def ended(self) -> None:
        assert self.task is not None
        await asyncio.wait_for(self.task, PATIENCE_S)

    async def until(self, good: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not good():  # noqa: ASYNC110  # what is waited for has no event
                await asyncio.sleep(0)

    async def ask(self, method: str = "GET", path: str = "/a", *parts: bytes, query: bytes = b"") -> tuple[int, bytes]:
        self.start(scope_of(method, path, query=query) | {"headers": self.headers})
        bodies = parts or (b"",)
        for place, part in enumerate(bodies):
            self.coming.put_nowait({"type": "http.request", "body": part, "more_body": place < len(bodies) - 1})
        await self.ended()
        return self.sent[0]["status"], b"".join(event["body"] for event in self.sent[1:])

    def texts(self) -> list[str]:
        return [event["text"] for event in self.sent if event["type"] == "websocket.send"]


def scope_of(method: str = "GET", path: str = "/a", kind: str = "http", **more: Any) -> dict[str, Any]:
    return {
        "type": kind,
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": more.pop("query", b""),
        "headers": [(b"Accept", b"*/*")],
        **more,
    }


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE_S))


def with_host(handle: Callable[[Request], Answer], test: Callable[[Host], Awaitable[None]]) -> None:
    async def body() -> None:
        await test(Host(handle))

    run(body())


def test_a_request_is_answered() -> None:
    async def test(host: Host) -> None:
        assert await host.ask("POST", "/a%20b", b"x", b"yz", query=b"c=d") == (200, b"POST /a%20b c=d xyz")
        assert dict(host.sent[0]["headers"])[b"content-length"] == b"19"

    with_host(echo, test)


def test_head_has_no_body() -> None:
    async def test(host: Host) -> None:
        assert await host.ask("HEAD") == (200, b"")

    with_host(echo, test)


def test_a_pending_reply_is_waited_for_and_a_caller_who_goes_hangs_up() -> None:
    waiting: list[tuple[Request, Pending[Reply]]] = []

    def later(request: Request) -> Pending[Reply]:
        waiting.append((request, Pending()))
        request.on_hang_up = lambda: waiting[0][1].resolve(Reply(200, b"in a hurry"))
        return waiting[-1][1]

    async def test(host: Host) -> None:
        host.start(scope_of())
        host.coming.put_nowait({"type": "http.request"})
        await host.until(lambda: bool(waiting))
        host.coming.put_nowait({"type": "http.disconnect"})
        await host.ended()
        assert host.sent[1]["body"] == b"in a hurry"

    with_host(later, test)


def test_a_body_too_long_is_told_to_the_app() -> None:
    async def test(host: Host) -> None:
        assert (await host.ask("POST", "/a", b"x" * BODY_BYTES_MAX, b"y", b"z"))[0] == 413

    with_host(lambda request: Reply(413 if request.oversized else 200), test)


def test_a_caller_who_goes_before_the_end_of_the_request_asked_for_nothing() -> None:
    async def test(host: Host) -> None:
        host.start(scope_of("POST"))
        host.coming.put_nowait({"type": "http.disconnect"})
        await host.ended()
        assert host.sent == []

    with_host(echo, test)


def test_a_stream_runs_until_it_is_closed() -> None:
    voice = Voice(b"a")

    async def test(host: Host) -> None:
        host.start(scope_of())
        host.coming.put_nowait({"type": "http.request"})
        await host.until(lambda: len(host.sent) == 2)
        host.serving.peers.finish()
        await host.ended()
        assert b"".join(event.get("body", b"") for event in host.sent) == b"abye"
        assert voice.heard == ["opened", "goodbye", "closed"]
        assert len(host.serving.peers) == 0

    with_host(lambda _: StreamAnswer(voice), test)


def test_a_stream_whose_caller_goes_is_closed() -> None:
    voice = Voice(b"a")

    async def test(host: Host) -> None:
        host.start(scope_of())
        host.coming.put_nowait({"type": "http.request"})
        await host.until(lambda: len(host.sent) == 2)
        host.coming.put_nowait({"type": "http.disconnect"})
        await host.ended()
        assert voice.heard == ["opened", "closed"]

    with_host(lambda _: StreamAnswer(voice), test)


def test_a_stream_that_is_not_read_has_no_room() -> None:
    voice = Voice()

    async def test(host: Host) -> None:
        host.start(scope_of())
        host.coming.put_nowait({"type": "http.request"})
        await host.until(lambda: voice.sink is not None)
        host.reads.clear()
        voice.say(b"x" * HIGH_WATER)
        await asyncio.sleep(0)
        assert voice.sink is not None
        assert not voice.sink.room
        assert voice.sink.unsent == HIGH_WATER
        host.reads.set()
        await host.until(lambda: voice.heard == ["opened", "room"])
        voice.sink.close()
        await host.ended()

    with_host(lambda _: StreamAnswer(voice), test)


def test_a_socket_speaks_and_hears() -> None:
    talk = Talk()

    async def test(host: Host) -> None:
        host.start(scope_of(kind="websocket"))
        host.coming.put_nowait({"type": "websocket.connect"})
        host.coming.put_nowait({"type": "websocket.receive", "text": "hello"})
        host.coming.put_nowait({"type": "websocket.receive", "bytes": b"\xff"})
        await host.until(lambda: talk.heard == ["opened", "hello", b"\xff"])
        assert talk.sink is not None
        talk.sink.listen(False)
        talk.sink.send(b"there")
        talk.sink.listen(True)
        await host.until(lambda: host.texts() == ["there"])
        talk.sink.close(1001)
        await host.ended()
        assert host.sent[-1] == {"type": "websocket.close", "code": 1001}
        assert talk.heard[-1] == "closed"

    with_host(lambda _: Upgrade(talk), test)


def test_a_socket_whose_peer_goes_is_closed() -> None:
    talk = Talk()

    async def test(host: Host) -> None:
        host.start(scope_of(kind="websocket"))
        host.coming.put_nowait({"type": "websocket.connect"})
        host.coming.put_nowait({"type": "websocket.disconnect"})
        await host.ended()
        assert talk.heard == ["opened", "closed"]
        assert [event["type"] for event in host.sent] == ["websocket.accept"]

    with_host(lambda _: Upgrade(talk), test)


def test_who_may_not_open_a_socket_is_told_so_as_well_as_the_server_can() -> None:
    async def test(host: Host) -> None:
        host.start(scope_of(kind="websocket"))
        host.coming.put_nowait({"type": "websocket.connect"})
        await host.ended()
        assert host.sent[0]["type"] == "websocket.close"
        host.start(scope_of(kind="websocket", extensions={"websocket.http.response": {}}))
        host.coming.put_nowait({"type": "websocket.connect"})
        await host.ended()
        assert (host.sent[1]["type"], host.sent[1]["status"]) == ("websocket.http.response.start", 401)

    with_host(lambda _: Reply(401), test)


def test_a_plain_request_for_a_socket_is_400() -> None:
    talk = Talk()

    async def test(host: Host) -> None:
        status, body = await host.ask()
        assert status == 400
        assert json.decode(body)["error"]["code"] == "invalid_request"
        assert talk.heard == ["closed"]

    with_host(lambda _: Upgrade(talk), test)


def test_the_end_of_the_lifespan_lets_streams_say_goodbye() -> None:
    voice = Voice()

    async def test(host: Host) -> None:
        host.start(scope_of())
        host.coming.put_nowait({"type": "http.request"})
        await host.until(lambda: voice.sink is not None)
        life, events = asyncio.Queue[Event](), list[Event]()

        async def note(event: Event) -> None:
            events.append(event)

        life.put_nowait({"type": "lifespan.startup"})
        life.put_nowait({"type": "lifespan.shutdown"})
        await host.app({"type": "lifespan"}, life.get, note)
        assert [event["type"] for event in events] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
        assert voice.heard == ["opened", "goodbye", "closed"]

    with_host(lambda _: StreamAnswer(voice), test)


def test_a_whole_server_behind_the_door(tmp_path: Path) -> None:
    async def body() -> None:
        runtime = AsyncioRuntime(asyncio.get_running_loop())
        server = Server(Settings(data_dir=str(tmp_path / "data")), OsDisk(), SystemClock(), runtime)
        handle = App(server).handle

        async def ask(method: str, path: str, value: object) -> tuple[int, Any]:
            host = Host(handle)
            host.headers = [(b"content-type", b"application/json")]
            status, found = await host.ask(method, path, json.encode(value))
            return status, json.decode(found)

        try:
            assert (await ask("PUT", "/v0/topics/t", {"durability": "fsync"}))[0] == 201
            status, written = await ask("POST", "/v0/topics/t", {"records": [{"data": [1, "é"]}]})
            assert (status, written["seqs"]) == (200, [1])
            status, page = await ask("POST", "/v0/topics/t/diff", {})
            assert (status, [record["data"] for record in page["records"]]) == (200, [[1, "é"]])
            assert (await ask("POST", "/v0/topics/none/diff", {}))[1]["error"]["code"] == "topic_not_found"
        finally:
            await runtime.future(server.close())

    run(body())
