"""`GET /v1/consume`: lines, heartbeats, and what becomes of a client that does not read (http-v1 §3.6)."""

import pytest
from msgspec import json

from driftq.features.broker.protocols import OutgoingMessage
from driftq.http.answer import StreamAnswer
from driftq.http.v1.messages.consume import line_of
from driftq.model.broker_settings import BrokerSettings
from driftq.model.message import DlqNote, Envelope, Message, RetryPolicy, Routing
from driftq.testing.server_rig import KeptSink
from tests.unit.http.v1.brokered import BrokerRig, KeptStream

PATH = "/v1/consume?topic=t&group=g&owner=o"


def opened(rig: BrokerRig, path: str = PATH) -> tuple[StreamAnswer, KeptSink, KeptStream]:
    stream, sink = rig.stream(path)
    return stream, sink, rig.broker.streams[-1]


def test_the_head_and_what_reaches_the_broker() -> None:
    rig = BrokerRig()
    stream, sink, _ = opened(rig, f"{PATH}&lease_ms=500&max_in_flight=3")
    headers = dict(stream.headers)
    assert stream.content_type == b"application/x-ndjson; charset=utf-8"
    assert (headers[b"cache-control"], headers[b"x-accel-buffering"]) == (b"no-store", b"no")
    assert sink.taken() == b""
    opened(rig, f"{PATH}&max_in_flight=x")
    assert rig.broker.attached == [("t", "g", "o", 500, 3), ("t", "g", "o", 0, None)]


def test_the_json_form() -> None:
    rig = BrokerRig()
    answer = rig.send("GET", "/v1/consume", {"topic": "t", "group": " g", "owner": "o", "lease_ms": 5})
    assert isinstance(answer, StreamAnswer)
    answer.source.opened(KeptSink())
    assert rig.broker.attached == [("t", "g", "o", 5, None)]
    refused = {"topic": "t", "group": "g", "owner": "o", "max_in_flight": 3}
    assert rig.message(rig.reply("GET", "/v1/consume", refused)).startswith("invalid json body: ")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("topic=t&group=g", "topic, group, and owner are required"),
        ("topic=t&group=+&owner=o&lease_ms=x", "topic, group, and owner are required"),
        ("topic=t&group=g&owner=o&lease_ms=-1", "invalid lease_ms"),
        ("topic=t&group=g&owner=o&lease_ms=x", "invalid lease_ms"),
        ("topic=nope&group=g&owner=o", "topic does not exist"),
    ],
)
def test_what_is_wrong_is_said_before_the_stream(query: str, message: str) -> None:
    """inv1: 39, 40"""
    rig = BrokerRig()
    assert rig.message(rig.reply("GET", f"/v1/consume?{query}")) == message
    assert rig.server.admission.streams == 0


def test_a_line_has_its_six_keys_and_is_ascii() -> None:
    """inv1: 28, 29"""
    value = "a\u0085b\u2028c\ne\r\u00e9\U0001f600\x7f"
    line = line_of(OutgoingMessage(1, 2, 3, "e", Message(value, "k")))
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert line.endswith(b"}\n")
    assert json.decode(line) == {
        "partition": 1,
        "offset": 2,
        "attempts": 3,
        "key": "k",
        "value": value,
        "last_error": "e",
    }


def test_envelope_and_routing_are_shown_where_there_are_any() -> None:
    note = DlqNote("t", 0, 0, 1, "", 0, "g")
    envelope = Envelope(
        run_id="é",
        partition_override=0,
        retry_policy=RetryPolicy(max_attempts=2),
        dlq=note,
        redrive_policy=RetryPolicy(5),
    )
    line = json.decode(line_of(OutgoingMessage(0, 0, 1, "", Message("v", "", envelope, Routing("x", {"k": "ü"})))))
    assert line["routing"] == {"label": "x", "meta": {"k": "ü"}}
    assert line["envelope"] == {
        "run_id": "é",
        "partition_override": 0,
        "retry_policy": {"max_attempts": 2},
        "dlq": {
            "original_topic": "t",
            "original_partition": 0,
            "original_offset": 0,
            "attempts": 1,
            "last_error": "",
            "routed_at_ms": 0,
            "group": "g",
        },
    }


def test_an_empty_line_after_silence_and_only_then() -> None:
    """inv1: 38"""
    rig = BrokerRig(settings=BrokerSettings(heartbeat_ms=1000))
    _, sink, _ = opened(rig)
    rig.runtime.advance(999)
    assert sink.taken() == b""
    rig.broker.outlets[0].deliver([OutgoingMessage(0, 0, 1, "", Message("v"))])
    assert sink.taken().endswith(b"}\n")
    rig.runtime.advance(999)
    assert sink.taken() == b""
    rig.runtime.advance(1)
    assert sink.taken() == b"\n"
    rig.runtime.advance(3000)
    assert sink.taken() == b"\n\n\n"


def test_without_heartbeats_a_stream_is_silent() -> None:
    rig = BrokerRig(settings=BrokerSettings(heartbeat_ms=0))
    _, sink, _ = opened(rig)
    rig.runtime.advance(3_600_000)
    assert (sink.taken(), sink.ended) == (b"", False)


def test_a_client_that_takes_nothing_is_cut_off_and_a_slow_one_is_not() -> None:
    rig = BrokerRig(settings=BrokerSettings(stream_stall_ms=1000, heartbeat_ms=0))
    _, sink, stream = opened(rig)
    outlet = rig.broker.outlets[0]
    assert outlet.ready()
    sink.room, sink.unsent = False, 100_000
    outlet.deliver([OutgoingMessage(0, 0, 1, "", Message("v"))])
    assert not outlet.ready()
    for left in range(90_000, 0, -10_000):
        rig.runtime.advance(900)
        sink.unsent = left
    assert (sink.ended, stream.woken) == (False, 0)
    rig.runtime.advance(1500)
    assert (sink.ended, stream.woken) == (True, 0)


def test_room_wakes_the_stream_and_the_end_detaches_it() -> None:
    rig = BrokerRig()
    answer, _, stream = opened(rig)
    assert rig.server.admission.streams == 1
    answer.source.room()
    assert (stream.woken, stream.gone) == (1, False)
    answer.source.closed()
    assert stream.gone
    assert rig.server.admission.streams == 0
    assert not rig.broker.outlets[0].ready()


def test_a_stream_ends_whole_when_the_server_goes() -> None:
    rig = BrokerRig()
    answer, sink, _ = opened(rig)
    answer.source.goodbye()
    assert sink.ended
    assert sink.code == 1000
