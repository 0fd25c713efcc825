"""The watch as a plan: it goes on where it stopped, whatever happens to its connection or its session."""

from typing import Any

import pytest
from msgspec.json import encode

from driftq.client.errors import NotFoundError, TransportError
from driftq.client.topics.watch import CaughtUp, Start, TopicGone, Watched, watched
from driftq.client.transport.plan import Response
from driftq.model.tombstone import Tombstone
from driftq.model.v0_answers import Record
from tests.unit.client.script import CUT, UNREACHED, Script, calls, refused, reply

OPEN = Response(200, {}, b"")


def begun(wid: str, **topics: int) -> Response:
    starts = {name: {"from_seq": seq, "head_seq": seq, "earliest_seq": 1} for name, seq in topics.items()}
    facts = {"wid": wid, "stream_url": f"/v0/watch/{wid}", "session_ttl_ms": 1, "topics": starts}
    return reply(200, facts | {"performance": {"server_total_ms": 0.1}})


def frame(event: str, number: str, **data: Any) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (number.encode(), event.encode(), encode(data))


def records(topic: str, *seqs: int) -> bytes:
    rows = [{"$seq": seq, "$ts": 1, "data": seq} for seq in seqs]
    return frame("record", f"{topic}{seqs[-1]}", topic=topic, records=rows, from_seq=seqs[0] - 1, to_seq=seqs[-1])


def gap(topic: str, first: int, last: int) -> bytes:
    facts = {"$type": "tombstone", "$seq": last + 1, "gap_from": first, "gap_to": last, "reason": "cap"}
    facts |= {"missed_estimate": 1, "earliest_seq": last + 1, "head_seq": last + 5}
    return frame("tombstone", f"{topic}{last}", topic=topic, **facts)


def told(script: Script, **topics: int) -> list[tuple[str, Watched]]:
    starts = {name: Start(seq) for name, seq in topics.items()}
    return script.items(watched(calls(), starts, lambda topic, item: (topic, item), node=None))


def shown(items: list[tuple[str, Watched]]) -> list[object]:
    return [item.seq if isinstance(item, Record) else type(item) for _, item in items]


def test_records_tombstones_and_being_caught_up_are_values() -> None:
    script = Script(
        begun("w1", a=0),
        OPEN,
        b"retry: 2000\n\n: hb 1\n\n",
        gap("a", 1, 3),
        records("a", 4, 5),
        frame("caught-up", "x"),
    )
    script = Script(
        begun("w1", a=0),
        OPEN,
        b"retry: 2000\n\n: hb 1\n\n" + gap("a", 1, 3),
        records("a", 4, 5),
        frame("caught-up", "a5", topic="a", head_seq=5),
    )
    items = told(script, a=0)
    assert shown(items) == [Tombstone, 4, 5, CaughtUp]
    assert isinstance(items[0][1], Tombstone)
    assert (items[0][1].gap_from, items[0][1].gap_to) == (1, 3)


def test_frames_may_come_in_any_pieces() -> None:
    text = records("a", 1, 2) + records("a", 3)
    pieces = [text[at : at + 1] for at in range(len(text))]
    assert shown(told(Script(begun("w1", a=0), OPEN, *pieces), a=0)) == [1, 2, 3]


def test_a_broken_stream_goes_on_behind_the_last_whole_frame() -> None:
    half = records("a", 3, 4)[:-5]
    script = Script(begun("w1", a=0), OPEN, records("a", 1, 2), half, CUT, OPEN, records("a", 3, 4), b"", OPEN)
    assert shown(told(script, a=0)) == [1, 2, 3, 4]
    assert [one.headers.get("last-event-id") for one in script.asked[1:]] == [None, "a2", "a4"]
    assert script.shut == 2


def test_a_session_that_is_gone_is_begun_anew_from_the_cursors() -> None:
    script = Script(
        begun("w1", a=0, b=7),
        OPEN,
        records("a", 1, 2),
        gap("b", 8, 9),
        b"",
        refused(404, "not_found"),
        begun("w2", a=2, b=9),
        OPEN,
        records("a", 3),
        records("b", 10),
    )
    assert shown(told(script, a=0, b=7)) == [1, 2, Tombstone, 3, 10]
    again = list(script.bodies())[3]
    assert again["topics"] == {"a": {"from_seq": 2}, "b": {"from_seq": 9}}
    assert script.asked[4].path == "/v0/watch/w2"


def test_a_topic_deleted_while_nobody_looked_is_told_of() -> None:
    script = Script(
        begun("w1", a=0, b=0), OPEN, CUT, refused(404, "not_found"), begun("w2", b=0), OPEN, records("b", 1)
    )
    assert [(topic, type(item)) for topic, item in told(script, a=0, b=0)] == [("a", TopicGone), ("b", Record)]
    assert script.asked[3].query == {"lenient": "true"}


def test_it_ends_when_no_topic_is_left() -> None:
    script = Script(begun("w1", a=0), OPEN, frame("topic-deleted", "x", topic="a", head_seq=4, reason="deleted"))
    assert told(script, a=0) == [("a", TopicGone(4))]


def test_once_open_it_comes_back_however_long_the_server_is_away() -> None:
    away = [UNREACHED] * 40
    script = Script(begun("w1", a=0), OPEN, CUT, *away, OPEN, records("a", 1))
    assert shown(told(script, a=0)) == [1]
    assert max(script.pauses) <= 2.0


def test_a_watch_that_never_began_fails_like_a_call() -> None:
    with pytest.raises(TransportError):
        told(Script(*[UNREACHED] * 40), a=0)
    with pytest.raises(NotFoundError):
        told(Script(refused(404, "topic_not_found")), a=0)


def told_epochs(wid: str, **topics: tuple[int, int]) -> Response:
    rows = {
        name: {"from_seq": seq, "head_seq": 8, "earliest_seq": 1, "epoch": epoch}
        for name, (seq, epoch) in topics.items()
    }
    return reply(
        200, {"wid": wid, "stream_url": "", "session_ttl_ms": 1, "topics": rows, "performance": {"server_total_ms": 0}}
    )


def test_a_new_session_is_begun_with_the_epoch_that_was_told_until_the_topic_is_another() -> None:
    recreated = frame(
        "tombstone",
        "b0",
        **{"topic": "b", "$type": "tombstone", "$seq": 1, "gap_from": 1, "gap_to": 2, "reason": "recreated"},
        missed_estimate=2,
        earliest_seq=1,
        head_seq=2,
    )
    script = Script(
        told_epochs("w1", a=(0, 5), b=(0, 6)),
        OPEN,
        records("a", 1, 2) + recreated + records("b", 1),
        b"",
        refused(404, "not_found"),
        told_epochs("w2", a=(2, 5), b=(1, 7)),
        OPEN,
        b"",
    )
    told(script, a=0, b=0)
    bodies = list(script.bodies())
    assert bodies[0]["include_epoch"] is True
    assert bodies[3]["topics"] == {"a": {"from_seq": 2, "epoch": 5}, "b": {"from_seq": 1}}


def test_a_cursor_that_the_server_lowered_to_the_head_is_said(caplog: pytest.LogCaptureFixture) -> None:
    told(Script(told_epochs("w1", a=(8, 5)), OPEN, b""), a=999)
    assert "cursor 999 is above the head 8" in caplog.text
