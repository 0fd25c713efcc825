"""Consuming and pushed jobs as plans: lines in any pieces, heartbeats, and streams that come back."""

import pytest
from msgspec.json import encode

from driftq.client.errors import BadRequestError, TransportError
from driftq.client.messages import MessageStream
from driftq.client.topics.pushed_jobs import Pushed
from driftq.client.transport.event_stream import kept_open
from driftq.client.transport.plan import Response
from tests.unit.client.script import CUT, UNREACHED, Script, calls, reply

OPEN = Response(200, {}, b"")


def line(offset: int) -> bytes:
    facts = {"partition": 1, "offset": offset, "attempts": 1, "key": "", "value": f"v{offset}", "last_error": ""}
    return encode(facts) + b"\n"


def job(seq: int) -> bytes:
    facts = {"topic": "q", "$seq": seq, "lease_id": "lease_1", "deadline": 5, "$ts": 1, "deliveries": 1, "data": seq}
    return b"id: %d\nevent: job\ndata: %b\n\n" % (seq, encode(facts))


def consumed(script: Script) -> list[int]:
    flow = kept_open(calls(), MessageStream("t", "g", "me", lease_ms=500, max_in_flight=None))
    found = script.items(flow)
    assert all((one.topic, one.group, one.owner) == ("t", "g", "me") for one in found)
    return [one.offset for one in found]


def test_lines_may_come_in_any_pieces_and_empty_ones_are_heartbeats() -> None:
    text = line(0) + b"\n" + line(1) + b"\n\n" + line(2)
    for step in (1, 7, len(text)):
        pieces = [text[at : at + step] for at in range(0, len(text), step)]
        assert consumed(Script(OPEN, *pieces)) == [0, 1, 2]


def test_a_consumer_comes_back_and_half_a_line_is_forgotten() -> None:
    script = Script(OPEN, line(0) + line(1)[:-9], CUT, UNREACHED, OPEN, line(1), b"", OPEN, line(2))
    assert consumed(script) == [0, 1, 2]
    assert {tuple(sorted(one.query.items())) for one in script.asked} == {
        (("group", "g"), ("lease_ms", "500"), ("owner", "me"), ("topic", "t"))
    }


@pytest.mark.parametrize("end", [b"", CUT])
def test_a_consumer_that_leaves_reads_its_stream_to_the_end_and_does_not_come_back(end: bytes | TransportError) -> None:
    place = MessageStream("t", "g", "me", stream="mine")
    script = Script(OPEN, line(0), line(1) + line(2)[:9], line(2)[9:], end)
    found = []
    for one in script.each(kept_open(calls(), place)):
        found.append(one.offset)
        place.leave()
    assert found == [0, 1, 2]
    assert (len(script.asked), script.pauses) == (1, [])
    assert script.asked[0].query["stream"] == "mine"


def test_a_topic_that_is_not_there_is_an_error_and_not_waited_for() -> None:
    script = Script(reply(400, {"error": "INVALID_ARGUMENT", "message": "topic does not exist"}))
    with pytest.raises(BadRequestError, match="topic does not exist"):
        consumed(script)


def test_pushed_jobs_come_back_too_and_end_with_their_queue() -> None:
    gone = b'event: error\ndata: {"code":409,"error":"not_a_queue","message":"gone"}\n\n'
    script = Script(OPEN, b"retry: 2000\n\n: hb 1\n\n", job(1), CUT, OPEN, job(2) + gone)
    flow = kept_open(calls(), Pushed("/v0/topics/q", {"node": "me", "max": 2}))
    assert [one.seq for one in script.items(flow)] == [1, 2]
    assert script.asked[0].path == "/v0/topics/q/work"
