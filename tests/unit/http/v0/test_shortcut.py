"""Writes by the short way are answered like those by the long one, and in their order (`http/answer`)."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from driftq.codec.write_body import decode_plain
from driftq.http.answer import Shortcut
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.transport.connection import ServerConnection
from driftq.http.transport.connection_context import Serving, Terms
from driftq.http.transport.h1.reply_order import PIPELINE_MAX
from driftq.http.v0.records import short_write
from driftq.model.limits import Limits
from driftq.storage.blocks.rows import Row, Rows
from driftq.testing import FaultyDisk, ServerRig
from tests.unit.http.wire import Transport, replies_in

JSON = "Content-Type: application/json"
PATH = "/v0/topics/t"


class Wire:
    """Connections to the server of a rig, and how many of their requests took the short way."""

    def __init__(self, rig: ServerRig, *, short: bool = True) -> None:
        self.rig = rig
        self.taken = 0
        terms = Terms(body_bytes_max=1 << 21)
        self.serving = Serving(rig.app.handle, rig.runtime, terms, self._counted if short else None)
        self.transport = Transport()
        connection = ServerConnection(self.serving)
        self.transport.set_protocol(connection)
        connection.connection_made(self.transport)

    def _counted(self, request: Request) -> Shortcut | None:
        shortcut = self.rig.app.shortcut(request)
        if shortcut is None:
            return None

        def counted(body: bytes, replies: Any) -> bool:
            taken = shortcut(body, replies)
            self.taken += taken
            return taken

        return counted

    def send(self, data: bytes) -> None:
        """Bytes on the wire; no turn of the loop has run."""
        protocol: Any = self.transport.get_protocol()
        protocol.data_received(data)

    def replies(self) -> list[tuple[int, dict[bytes, bytes], Any]]:
        """All replies so far."""
        self.rig.run()
        return [
            (status, headers, json.loads(body)) for status, headers, body in replies_in(b"".join(self.transport.writes))
        ]


def post(body: bytes, *headers: str, path: str = PATH) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: here", f"Content-Length: {len(body)}", *(headers or (JSON,))]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def single(data: str = "1", more: str = "") -> bytes:
    return f'{{"records":[{{"data":{data}{more}}}]}}'.encode()


@pytest.fixture
def rig() -> Iterator[ServerRig]:
    rig = ServerRig()
    rig.ok("PUT", PATH, {})
    yield rig
    rig.close()


def test_a_second_write_of_one_record_takes_the_short_way(rig: ServerRig) -> None:
    wire = Wire(rig)
    for n in range(3):
        wire.send(post(single(f'{{"n":{n}}}', ',"tag":"a"')))
    assert [status for status, _, _ in wire.replies()] == [200, 200, 200]
    assert wire.taken == 2
    found = rig.diff("t", include_tags=True)["records"]
    assert [(record["$seq"], record["$tag"], record["data"]) for record in found] == [
        (n + 1, "a", {"n": n}) for n in range(3)
    ]


BODIES = [
    pytest.param(single(), True, id="a number"),
    pytest.param(single('{"a":[1,2.50,1e5,null,"x y"]}', ',"tag":"b c"'), True, id="spaces in strings"),
    pytest.param(b' { "records" : [ { "data" : { "a" : 1 } } ] } ', True, id="spaces"),
    pytest.param(single('"äöü€"', ',"tag":"ä"'), True, id="not ASCII"),
    pytest.param(single('"' + "x" * 5000 + '"'), True, id="long"),
    pytest.param(single("[" * 100 + "]" * 100), True, id="deep"),
    pytest.param(b'{"records":[{"data":1}],"create":false}', True, id="create"),
    pytest.param(b'{"records":[{"data":1}],"idempotency_key":""}', True, id="empty key"),
    pytest.param(single("[" * 129 + "]" * 129), False, id="too deep"),
    pytest.param(single('"a\\u0041\\n"'), False, id="escapes"),
    pytest.param(single("1", ',"node":"n"'), False, id="node"),
    pytest.param(single("1", ',"meta":{"a":"b"}'), False, id="meta"),
    pytest.param(single("1", ',"other":1'), False, id="unknown field"),
    pytest.param(b'{"records":[{"data":1}],"node":"n"}', False, id="batch node"),
    pytest.param(b'{"records":[{"data":1},{"data":2}]}', True, id="two"),
    pytest.param(
        b'{"records":[%b]}' % b",".join(b'{"data":"%d","tag":"t%d"}' % (n, n % 3) for n in range(300)), True, id="many"
    ),
    pytest.param(b'{"records":[{"data":1},{"data":"\\u0041","tag":null}]}', True, id="two, one with an escape"),
    pytest.param(b'{"records":[{"data":1},{"data":2,"meta":{}}]}', False, id="two, one with meta"),
    pytest.param(b'{"records":[{"data":1},{"data":2}],"idempotency_key":"k"}', False, id="two and a key"),
    pytest.param(
        b'{"records":[{"data":1},{"data":"%b"}]}' % (b"[" * 300), True, id="two, one with brackets in a string"
    ),
    pytest.param(b'{"records":[{"data":1},{"data":%b}]}' % (b"[" * 129 + b"]" * 129), False, id="two, one too deep"),
    pytest.param(b'{"records":[%b]}' % b",".join([b'{"data":1}'] * 10_001), False, id="too many"),
    pytest.param(b'{"records":[]}', False, id="none"),
    pytest.param(single('{"data":1}'), True, id="data in data"),
    pytest.param(b'{"records":[{"\\u0064ata":1}]}', True, id="data by another name"),
    pytest.param(b'{"records":[{"data":1}],"config":{"ttl_ms":5}}', False, id="config"),
    pytest.param(b'{"records":[{"data":1}],"disable_backpressure":true}', False, id="no backpressure"),
    pytest.param(b'{"records":[{"data":1}],"config":{"ttl_ms":-5}}', False, id="bad config"),
    pytest.param(b'{"records":[{"data":NaN}]}', False, id="NaN"),
    pytest.param(b'{"records":[{"data":1}]', False, id="cut"),
    pytest.param(b'{"records":[{"data":"\xff"}]}', False, id="not UTF-8"),
    pytest.param(b'{"records":[{}]}', False, id="no data"),
    pytest.param(single("1", ',"tag":"' + "t" * 257 + '"'), False, id="long tag"),
    pytest.param(single('"' + "x" * (1 << 20) + '"'), False, id="too large"),
    pytest.param(b"", False, id="empty"),
]


@pytest.mark.parametrize(("body", "short"), BODIES)
@pytest.mark.parametrize("query", ["", "?return_seqs=false"])
@pytest.mark.parametrize("durability", ["ephemeral", "disk", "fsync"])
def test_both_ways_give_the_same_answer_and_the_same_records(
    body: bytes, short: bool, query: str, durability: str
) -> None:
    answers, records = [], []
    for way in (True, False):
        rig = ServerRig(limits={"body_bytes_max": 1 << 21})
        rig.ok("PUT", PATH, {"durability": durability})
        wire = Wire(rig, short=way)
        for _ in range(3):
            wire.send(post(body, path=PATH + query))
        answers.append([(status, headers, _timeless(answer)) for status, headers, answer in wire.replies()])
        records.append([{**record, "$ts": 0} for record in rig.diff("t", include_tags=True)["records"]])
        assert wire.taken == (2 if way and short else 0)
        rig.close()
    assert records[0] == records[1]
    for (status, headers, answer), (also, others, same) in zip(*answers, strict=True):
        assert (status, answer) == (also, same)
        assert set(headers) == set(others)


def _timeless(answer: dict[str, Any]) -> dict[str, Any]:
    if "performance" in answer:
        answer["performance"] = {name: name == "fsync_ms" and took > 0 for name, took in answer["performance"].items()}
    return answer


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (PATH, (JSON, "Idempotency-Key: k")),
        (PATH, ("Content-Type: text/plain",)),
        (PATH, ("X-Other: 1",)),
        ("/v0/topics/absent", (JSON,)),
        ("/v0/topics/@t", (JSON,)),
        ("/v0/topics/t/diff", (JSON,)),
        ("/v1/produce", (JSON,)),
        ("/nowhere", (JSON,)),
    ],
)
def test_other_requests_take_the_long_way(rig: ServerRig, path: str, headers: tuple[str, ...]) -> None:
    body = b'{"records":[{"data":1}],"create":false}'
    wires = [Wire(rig), Wire(rig, short=False)]
    for wire in wires:
        for _ in range(2):
            wire.send(post(body, *headers, path=path))
            rig.run()
    assert [wire.taken for wire in wires] == [0, 0]
    short, long = [[status for status, _, _ in wire.replies()] for wire in wires]
    assert short == long


def test_with_keys_there_is_no_short_way() -> None:
    rig = ServerRig(keys="sesame:rw+admin")
    rig.ok("PUT", PATH, {}, key="sesame")
    wire = Wire(rig)
    for key in ("sesame", "sesame", "other"):
        wire.send(post(single(), JSON, f"Authorization: Bearer {key}"))
    assert [status for status, _, _ in wire.replies()] == [200, 200, 401]
    assert wire.taken == 0
    rig.close()


@pytest.mark.parametrize(
    ("config", "limits", "status", "code"),
    [
        ({"cap_records": 2, "discard": "reject"}, {}, 422, "topic_full"),
        ({}, {"total_bytes_max": 2}, 429, "throttled"),
    ],
)
def test_what_does_not_fit_is_refused_as_ever(
    config: dict[str, Any], limits: dict[str, int], status: int, code: str
) -> None:
    rig = ServerRig(limits=limits)
    rig.ok("PUT", PATH, config)
    wire = Wire(rig)
    for _ in range(4):
        wire.send(post(single()))
        rig.run()
    found = wire.replies()
    assert [status for status, _, _ in found] == [200, 200, status, status]
    assert found[-1][2]["error"]["code"] == code
    assert wire.taken == 1
    rig.close()


def test_a_topic_that_is_deleted_meanwhile_is_made_again_by_the_long_way(rig: ServerRig) -> None:
    wire = Wire(rig)
    wire.send(post(single()) * 2)
    assert [answer["created"] for _, _, answer in wire.replies()] == [False, False]
    rig.ok("DELETE", PATH)
    wire.send(post(single()) * 2)
    assert [answer["created"] for _, _, answer in wire.replies()[2:]] == [True, False]


def test_replies_of_both_ways_come_in_the_order_of_their_requests(rig: ServerRig) -> None:
    rig.ok("PUT", PATH, {"durability": "fsync"})
    wire = Wire(rig)
    diff = post(b'{"from_seq":0}', path=f"{PATH}/diff")
    wire.send(post(single()))
    wire.send(diff)
    wire.replies()
    rig.runtime.hold("driftq-wal-0")
    wire.send(post(single("2")) + diff + post(single("3")))
    assert len(wire.replies()) == 2
    rig.runtime.release("driftq-wal-0")
    found = [answer for _, _, answer in wire.replies()[2:]]
    assert [answer.get("first_seq") for answer in found] == [2, None, 3]
    assert len(found[1]["records"]) == 1
    assert wire.taken == 2


def test_no_more_are_under_way_than_a_peer_may_have(rig: ServerRig) -> None:
    rig.ok("PUT", PATH, {"durability": "fsync"})
    wire = Wire(rig)
    wire.send(post(single()))
    wire.replies()
    rig.runtime.hold("driftq-wal-0")
    wire.send(post(single()) * (PIPELINE_MAX + 5))
    rig.run()
    assert wire.taken == PIPELINE_MAX
    assert not wire.transport.is_reading()
    rig.runtime.release("driftq-wal-0")
    seqs = [answer["first_seq"] for _, _, answer in wire.replies()]
    assert seqs == list(range(1, PIPELINE_MAX + 7))
    assert wire.transport.is_reading()


def test_a_peer_that_is_gone_costs_nobody_their_answer(rig: ServerRig) -> None:
    rig.ok("PUT", PATH, {"durability": "fsync"})
    gone, here = Wire(rig), Wire(rig)
    for wire in (gone, here):
        wire.send(post(single()))
        wire.replies()
    rig.runtime.hold("driftq-wal-0")
    for wire in (gone, here):
        wire.send(post(single()))
        rig.run()
    lost: Any = gone.transport.get_protocol()
    lost.connection_lost(None)
    rig.runtime.release("driftq-wal-0")
    assert [answer["first_seq"] for _, _, answer in here.replies()] == [2, 4]
    assert len(gone.replies()) == 1
    assert len(rig.diff("t")["records"]) == 4


def test_a_sync_that_fails_is_told_as_ever() -> None:
    broken = False

    def strikes(operation: str, path: str) -> bool:
        return broken and operation == "sync" and "/wal/" in path

    rig = ServerRig(wrap=lambda disk: FaultyDisk(disk, when=strikes))
    rig.ok("PUT", PATH, {"durability": "fsync"})
    wire = Wire(rig)
    wire.send(post(single()))
    wire.replies()
    broken = True
    wire.send(post(single()))
    status, _, answer = wire.replies()[-1]
    assert (wire.taken, status, answer["error"]["code"]) == (1, 500, "internal")
    assert len(rig.diff("t")["records"]) == 1


def test_a_connection_that_ends_says_so_with_its_last_reply(rig: ServerRig) -> None:
    rig.ok("PUT", PATH, {"durability": "fsync"})
    wire = Wire(rig)
    wire.send(post(single()))
    wire.replies()
    rig.runtime.hold("driftq-wal-0")
    wire.send(post(single()))
    rig.run()
    wire.serving.peers.finish()
    rig.runtime.release("driftq-wal-0")
    status, headers, answer = wire.replies()[-1]
    assert (wire.taken, status, answer["first_seq"]) == (1, 200, 2)
    assert headers[b"connection"] == b"close"
    assert wire.transport.is_closing()


def test_who_answers_from_now_on_is_asked_for_the_short_way(rig: ServerRig) -> None:
    wire = Wire(rig)
    wire.serving.shortcut = None
    wire.send(post(single()) * 2)
    wire.replies()
    wire.serving.heads.forget()
    wire.serving.shortcut = wire._counted
    wire.send(post(single()))
    wire.send(post(single()))
    assert [status for status, _, _ in wire.replies()] == [200] * 4
    assert wire.taken == 1


def test_a_server_that_is_going_takes_nothing_by_the_short_way(rig: ServerRig) -> None:
    wire = Wire(rig)
    wire.send(post(single()))
    wire.replies()
    rig.server.close()
    wire.send(post(single()))
    status, _, answer = wire.replies()[-1]
    assert (wire.taken, status, answer["error"]["code"]) == (0, 503, "shutting_down")
    assert isinstance(rig.app.handle(rig.request("GET", "/v0/health")), Reply)


def test_a_large_body_is_not_decoded_in_vain(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []

    def counted(body: bytes, limits: Limits) -> tuple[Rows | Row, bytes | None] | None:
        decoded.append(len(body))
        return decode_plain(body, limits)

    monkeypatch.setattr(short_write, "decode_plain", counted)
    large = b'{"records":[{"data":"%b"},{"data":2}]}' % (b"x" * 3000)
    wire = Wire(rig)
    for _ in range(2):
        wire.send(post(large))
    assert [answer["last_seq"] for _, _, answer in wire.replies()] == [2, 4]
    assert (wire.taken, len(decoded)) == (1, 1)
    rig.ok("DELETE", PATH)
    wire.send(post(large))
    assert wire.replies()[-1][2]["created"]
    assert len(decoded) == 1


def test_a_long_reply_is_packed_for_who_takes_it(rig: ServerRig) -> None:
    body = b'{"records":[%b]}' % b",".join([b'{"data":1}'] * 500)
    wire = Wire(rig)
    for _ in range(2):
        wire.send(post(body, JSON, "Accept-Encoding: gzip"))
        rig.run()
    found = replies_in(b"".join(wire.transport.writes))
    assert [headers.get(b"content-encoding") for _, headers, _ in found] == [b"gzip", b"gzip"]
    for _ in range(2):
        wire.send(post(single(), JSON, "Accept-Encoding: gzip"))
        rig.run()
    assert wire.taken == 1


@pytest.mark.parametrize("more", ['"node":"n"', '"disable_backpressure":true', '"config":{}'])
def test_a_large_body_that_says_more_is_decoded_once(rig: ServerRig, more: str) -> None:
    records_of = ",".join(['{"data":1}'] * 100)
    assert decode_plain(f'{{"records":[{records_of}]}}'.encode(), Limits()) is not None
    assert decode_plain(f'{{"records":[{records_of}],{more}}}'.encode(), Limits()) is None
    assert decode_plain(f'{{{more},"records":[{records_of}]}}'.encode(), Limits()) is None
