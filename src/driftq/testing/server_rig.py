"""A server and its app on a simulated disk, called without a socket: requests go directly to the handlers.

`ask` drives the runtime until nothing is due and expects an answer by then; `send` does not, for answers that have to
wait. A stream or a socket is opened on a sink that keeps what it gets, and has room as long as the test wants.
"""

from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote

from msgspec import json, structs

from driftq.config import Settings
from driftq.http.answer import Answer, StreamAnswer, Upgrade
from driftq.http.app import App
from driftq.http.keys import ApiKeys
from driftq.http.reply import Reply
from driftq.http.request import Headers, Request
from driftq.server import Server
from driftq.system.disk import Disk
from driftq.system.runtime import Pending
from driftq.testing.engine_rig import SMALL
from driftq.testing.manual_clock import ManualClock
from driftq.testing.manual_runtime import ManualRuntime
from driftq.testing.seeded_entropy import SeededEntropy
from driftq.testing.simulated_disk import CrashMode, SimDisk
from driftq.testing.sync_order import OrderCheckingDisk

_NOTHING: Any = object()
_CLOSE_MS = 1000


class Asked(NamedTuple):
    """Status and decoded body of an answer: `status, body = rig.ask(…)`."""

    status: int
    body: Any


class KeptSink:
    """A sink for streams and for sockets that keeps everything it gets."""

    def __init__(self) -> None:
        self.room = True
        self.unsent = 0
        self.listens = True
        self.data = bytearray()
        self.sent: list[Any] = []
        self.ended = False
        self.code: int | None = None

    def write(self, data: bytes) -> None:
        """Keep the bytes of a stream."""
        if not self.ended:
            self.data += data

    def push(self, data: bytes) -> None:
        """Keep the bytes, like `write`."""
        self.write(data)

    def send(self, text: bytes) -> None:
        """Keep a message of a socket, decoded."""
        if not self.ended:
            self.sent.append(json.decode(text))

    def listen(self, wanted: bool) -> None:
        """Note whether the source wants messages; a test may send some anyway."""
        self.listens = wanted

    def close(self, code: int = 1000) -> None:
        """Note that the source ended the stream or socket."""
        self.ended = True
        self.code = code

    def cut(self) -> None:
        """Note that the source cut the stream off."""
        self.ended = True

    def taken(self) -> bytes:
        """Return the bytes since the last call."""
        data = bytes(self.data)
        self.data.clear()
        return data

    def messages(self) -> list[Any]:
        """Return the messages since the last call."""
        sent, self.sent = self.sent, []
        return sent


class ServerRig:
    """A server with fake disk, clock and runtime, which can crash and start again."""

    def __init__(
        self,
        settings: Settings = SMALL,
        *,
        disk: SimDisk | None = None,
        clock: ManualClock | None = None,
        seed: int | None = None,
        limits: dict[str, int] | None = None,
        keys: str = "",
        wrap: Callable[[Disk], Disk] = lambda disk: disk,
        **changes: object,
    ) -> None:
        """Set up the server. `limits` and `changes` replace settings; `keys` is the value of DRIFTQ_API_KEYS.

        `wrap` puts another disk between the server and the simulated one, for example a faulty one.
        """
        changes.setdefault("limits", structs.replace(settings.limits, **(limits or {})))
        self.settings = structs.replace(settings, **changes)
        self.disk = SimDisk() if disk is None else disk
        self.clock = ManualClock() if clock is None else clock
        self._seed = seed
        self._keys = ApiKeys.parse(keys)
        self._wrap = wrap
        self.start()

    def start(self) -> None:
        """Open the server on the disk as it is."""
        self.order = OrderCheckingDisk(self._wrap(self.disk))
        self.runtime = ManualRuntime(self.clock, self._seed, writer_processes_on=self.order)
        entropy = SeededEntropy(self._seed or 0)
        self.server = Server(self.settings, self.order, self.clock, self.runtime, entropy=entropy)
        self.app = App(self.server, self._keys)

    # Requests

    def request(
        self,
        method: str,
        path: str,
        value: Any = _NOTHING,
        *,
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
        key: str | None = None,
    ) -> Request:
        """Return a request as a connection makes it. `value` is sent as JSON, `raw` unchanged, both as JSON."""
        found: Headers = [(name.lower().encode(), text.encode()) for name, text in (headers or {}).items()]
        body = raw if raw is not None else b"" if value is _NOTHING else json.encode(value)
        if body and all(name != b"content-type" for name, _ in found):
            found.append((b"content-type", b"application/json"))
        if key is not None:
            found.append((b"authorization", f"Bearer {key}".encode()))
        target = quote(path, safe="/?&=%:>~+,;@!$'()*").encode()
        return Request.of(method.encode(), target, found, body)

    def send(self, method: str, path: str, value: Any = _NOTHING, **options: Any) -> Answer:
        """Pass a request to the app without driving: no loop turn has run. The options are those of `request`."""
        return self.app.handle(self.request(method, path, value, **options))

    def reply(self, method: str, path: str, value: Any = _NOTHING, **options: Any) -> Reply:
        """Return the whole reply, which must be there when nothing more is due."""
        answer = self.send(method, path, value, **options)
        self.run()
        found = settled(answer)
        assert found is not None, f"{method} {path} is still waiting"
        return found

    def ask(self, method: str, path: str, value: Any = _NOTHING, **options: Any) -> Asked:
        """Return the status and the decoded body."""
        return decoded_reply(self.reply(method, path, value, **options))

    def ok(self, method: str, path: str, value: Any = _NOTHING, **options: Any) -> Any:
        """Return the body of an answer, which must be a success."""
        status, body = self.ask(method, path, value, **options)
        assert status in (200, 201), (status, body)
        return body

    def code(self, method: str, path: str, value: Any = _NOTHING, **options: Any) -> tuple[int, str]:
        """Return status and error code of an answer, which must be exactly an error envelope."""
        status, body = self.ask(method, path, value, **options)
        assert set(body) == {"error"}, body
        assert {"code", "message"} <= set(body["error"]) <= {"code", "message", "detail"}, body
        assert body["error"]["message"]
        return status, body["error"]["code"]

    def write(self, topic: str, *datas: Any, **fields: Any) -> Any:
        """Write records that have only data; `fields` are added next to `records`."""
        return self.ok("POST", f"/v0/topics/{topic}", {"records": [{"data": data} for data in datas], **fields})

    def diff(self, topic: str, from_seq: int = 0, **fields: Any) -> Any:
        """Return the page after a cursor."""
        return self.ok("POST", f"/v0/topics/{topic}/diff", {"from_seq": from_seq, **fields})

    def stream(self, path: str, **options: Any) -> tuple[StreamAnswer, KeptSink]:
        """Open an event stream and drive until nothing is due."""
        answer = self.send("GET", path, **options)
        assert isinstance(answer, StreamAnswer), answer
        sink = KeptSink()
        answer.source.opened(sink)
        self.run()
        return answer, sink

    def socket(self, path: str = "/v0/ws", **options: Any) -> tuple[Upgrade, KeptSink]:
        """Open a WebSocket and drive until nothing is due."""
        answer = self.send("GET", path, **options)
        assert isinstance(answer, Upgrade), answer
        sink = KeptSink()
        answer.source.opened(sink)
        self.run()
        return answer, sink

    # Driving the runtime

    def run(self) -> None:
        """Drive the runtime until nothing is due."""
        self.runtime.run_until_idle()
        assert not self.order.violations, self.order.violations

    def advance(self, ms: int) -> None:
        """Let time pass, and run what is due on the way."""
        self.runtime.advance(ms)
        self.run()

    # Stop, crash and start

    def close(self) -> bool:
        """Stop gracefully, and return whether the last checkpoint was taken."""
        closing = self.server.close()
        self.advance(_CLOSE_MS)
        return closing.result()

    def restart(self, **changes: object) -> None:
        """Stop gracefully and start again, with changed settings."""
        assert self.close(), "no checkpoint was taken"
        self._again(changes)

    def crash(self, mode: CrashMode = CrashMode.DROP, seed: int = 0, **changes: object) -> None:
        """Lose power and start again, with changed settings."""
        self.runtime.stop()
        self.disk = self.disk.crash(mode, seed)
        self._again(changes)

    def kill(self, **changes: object) -> None:
        """Kill the server and start again: what was written is still in the page cache."""
        self.runtime.stop()
        self.disk = self.disk.fork()
        self._again(changes)

    def _again(self, changes: dict[str, object]) -> None:
        self.settings = structs.replace(self.settings, **changes)
        self.start()


def settled(answer: Answer) -> Reply | None:
    """Return the reply of an answer, or None if it is not there yet."""
    if isinstance(answer, Pending):
        return answer.result() if answer.settled else None
    assert isinstance(answer, Reply), answer
    return answer


def decoded_reply(reply: Reply) -> Asked:
    """Return status and body, decoded if it is JSON."""
    is_json = reply.content_type.startswith(b"application/json")
    return Asked(reply.status, json.decode(reply.whole) if is_json else reply.whole)
