"""A server and its app on a simulated disk, asked without a socket: what a handler gets and gives, and nothing else.

`ask` drives the runtime until nothing is due and wants an answer by then; `send` does not, for answers that have to
wait. A stream or a socket is opened on a sink that keeps what it was given and has room as long as the test says so.
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
    """What came back: `status, body = rig.ask(…)`."""

    status: int
    body: Any


class KeptSink:
    """Both kinds of sink: it keeps what it is given."""

    def __init__(self) -> None:
        self.room = True
        self.unsent = 0
        self.listens = True
        self.data = bytearray()
        self.sent: list[Any] = []
        self.ended = False
        self.code: int | None = None

    def write(self, data: bytes) -> None:
        """A stream's bytes."""
        if not self.ended:
            self.data += data

    def push(self, data: bytes) -> None:
        """The same."""
        self.write(data)

    def send(self, text: bytes) -> None:
        """A socket's message."""
        if not self.ended:
            self.sent.append(json.decode(text))

    def listen(self, wanted: bool) -> None:
        """Whether the source wants to hear more; a test that sends anyway is heard."""
        self.listens = wanted

    def close(self, code: int = 1000) -> None:
        """The end, by the source."""
        self.ended = True
        self.code = code

    def cut(self) -> None:
        """The end of a stream that is not whole."""
        self.ended = True

    def taken(self) -> bytes:
        """The bytes since the last call."""
        data = bytes(self.data)
        self.data.clear()
        return data

    def messages(self) -> list[Any]:
        """The messages since the last call."""
        sent, self.sent = self.sent, []
        return sent


class ServerRig:
    """A server, the fakes around it, and a second life after every crash."""

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
        """`limits` and `changes` replace fields of the settings; `keys` is what DRIFTQ_API_KEYS would be.

        `wrap` puts another disk between the server and the simulated one, a faulty one for example.
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
        self.runtime = ManualRuntime(self.clock, self._seed, scribes_on=self.order)
        entropy = SeededEntropy(self._seed or 0)
        self.server = Server(self.settings, self.order, self.clock, self.runtime, entropy=entropy)
        self.app = App(self.server, self._keys)

    # Asking

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
        """A request as a connection makes it. `value` is sent as JSON, `raw` as it is; both with the type of JSON."""
        found: Headers = [(name.lower().encode(), text.encode()) for name, text in (headers or {}).items()]
        body = raw if raw is not None else b"" if value is _NOTHING else json.encode(value)
        if body and all(name != b"content-type" for name, _ in found):
            found.append((b"content-type", b"application/json"))
        if key is not None:
            found.append((b"authorization", f"Bearer {key}".encode()))
        target = quote(path, safe="/?&=%:>~+,;@!$'()*").encode()
        return Request.of(method.encode(), target, found, body)

    def send(self, method: str, path: str, value: Any = _NOTHING, **options: Any) -> Answer:
        """Hand a request in; no loop turn has run. Options as `request` takes them."""
        return self.app.handle(self.request(method, path, value, **options))

    def reply(self, method: str, path: str, value: Any = _NOTHING, **options: Any) -> Reply:
        """The whole answer, which must be there when nothing more is due."""
        answer = self.send(method, path, value, **options)
        self.run()
        found = settled(answer)
        assert found is not None, f"{method} {path} is still waiting"
        return found

    def ask(self, method: str, path: str, value: Any = _NOTHING, **options: Any) -> Asked:
        """Status and decoded body."""
        return decoded_reply(self.reply(method, path, value, **options))

    def ok(self, method: str, path: str, value: Any = _NOTHING, **options: Any) -> Any:
        """The body of an answer that must be a success."""
        status, body = self.ask(method, path, value, **options)
        assert status in (200, 201), (status, body)
        return body

    def code(self, method: str, path: str, value: Any = _NOTHING, **options: Any) -> tuple[int, str]:
        """Status and error code of an answer that must be an envelope and nothing else."""
        status, body = self.ask(method, path, value, **options)
        assert set(body) == {"error"}, body
        assert {"code", "message"} <= set(body["error"]) <= {"code", "message", "detail"}, body
        assert body["error"]["message"]
        return status, body["error"]["code"]

    def write(self, topic: str, *datas: Any, **fields: Any) -> Any:
        """Write records that are only data; `fields` stand beside `records`."""
        return self.ok("POST", f"/v0/topics/{topic}", {"records": [{"data": data} for data in datas], **fields})

    def diff(self, topic: str, from_seq: int = 0, **fields: Any) -> Any:
        """The page after a cursor."""
        return self.ok("POST", f"/v0/topics/{topic}/diff", {"from_seq": from_seq, **fields})

    def stream(self, path: str, **options: Any) -> tuple[StreamAnswer, KeptSink]:
        """Open an event stream."""
        answer = self.send("GET", path, **options)
        assert isinstance(answer, StreamAnswer), answer
        sink = KeptSink()
        answer.source.opened(sink)
        self.run()
        return answer, sink

    def socket(self, path: str = "/v0/ws", **options: Any) -> tuple[Upgrade, KeptSink]:
        """Open a WebSocket."""
        answer = self.send("GET", path, **options)
        assert isinstance(answer, Upgrade), answer
        sink = KeptSink()
        answer.source.opened(sink)
        self.run()
        return answer, sink

    # Driving

    def run(self) -> None:
        """Until nothing is due."""
        self.runtime.run_until_idle()
        assert not self.order.violations, self.order.violations

    def advance(self, ms: int) -> None:
        """Let time pass, and do what is due on the way."""
        self.runtime.advance(ms)
        self.run()

    # Lives

    def close(self) -> bool:
        """Stop gracefully."""
        closing = self.server.close()
        self.advance(_CLOSE_MS)
        return closing.result()

    def restart(self, **changes: object) -> None:
        """Stop gracefully and start again."""
        assert self.close(), "no checkpoint was taken"
        self._again(changes)

    def crash(self, mode: CrashMode = CrashMode.DROP, seed: int = 0, **changes: object) -> None:
        """Lose power and start again."""
        self.runtime.stop()
        self.disk = self.disk.crash(mode, seed)
        self._again(changes)

    def kill(self, **changes: object) -> None:
        """Be killed and start again: what was written is still in the page cache."""
        self.runtime.stop()
        self.disk = self.disk.fork()
        self._again(changes)

    def _again(self, changes: dict[str, object]) -> None:
        self.settings = structs.replace(self.settings, **changes)
        self.start()


def settled(answer: Answer) -> Reply | None:
    """The reply of an answer, if it is there."""
    if isinstance(answer, Pending):
        return answer.result() if answer.settled else None
    assert isinstance(answer, Reply), answer
    return answer


def decoded_reply(reply: Reply) -> Asked:
    """Status and body, decoded where it is JSON."""
    is_json = reply.content_type.startswith(b"application/json")
    return Asked(reply.status, json.decode(reply.whole) if is_json else reply.whole)
