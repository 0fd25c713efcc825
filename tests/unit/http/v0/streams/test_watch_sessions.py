"""Watch over the wire: what a session answers, frames, resume, heartbeats, ends, slow clients."""

import re
from typing import Any

import pytest

from driftq.features.watch.watch_sessions import SESSION_TTL_MS
from driftq.http.v0.streams.watch_events import encode_id
from driftq.http.v0.streams.watch_stream import LOOK_MS, STUCK_MS
from driftq.testing.server_rig import ServerRig
from tests.unit.http.v0.events import Event, Watcher, events_of


@pytest.fixture
def rig() -> ServerRig:
    return ServerRig()


def test_a_session_answers_with_its_cursors(rig: ServerRig) -> None:
    """inv: 61"""
    rig.write("a", 1, 2, 3)
    rig.ok("PUT", "/v0/topics/b")
    body = rig.ok("POST", "/v0/watch", {"topics": {"a": {"from_seq": 2}, "b": {"tail": True}}})
    assert re.fullmatch(r"wid_[A-Za-z0-9_-]{22}", body["wid"])
    assert body["stream_url"] == f"/v0/watch/{body['wid']}"
    assert body["session_ttl_ms"] == 300_000
    assert body["topics"] == {
        "a": {"from_seq": 2, "head_seq": 3, "earliest_seq": 1},
        "b": {"from_seq": 0, "head_seq": 0, "earliest_seq": 1},
    }


def test_the_frames_of_a_stream(rig: ServerRig) -> None:
    """inv: 54, 55"""
    rig.ok("POST", "/v0/topics/a", raw=b'{"records" : [ {"data" : { "k" : [ 1, 2 ] } } ] }')
    rig.ok("PUT", "/v0/topics/b")
    watcher = Watcher(rig, ["b", "a"])
    data = bytes(watcher.sink.data)
    assert data.startswith(b"retry: 2000\n\nid: ")
    assert b'data: {"topic":"a","records":[{"$seq":1,' in data
    assert not re.search(rb"data: .*[:,] ", data)
    assert watcher.events()[1:] == [
        Event("record", _record("a", {"k": [1, 2]}, from_seq=0, head_seq=1, ts=data), {"a": 1, "b": 0}),
        Event("caught-up", {"topic": "a", "head_seq": 1}, {"a": 1, "b": 0}),
        Event("caught-up", {"topic": "b", "head_seq": 0}, {"a": 1, "b": 0}),
    ]
    assert dict(watcher.stream.headers) == {b"cache-control": b"no-store", b"x-accel-buffering": b"no"}
    assert watcher.stream.content_type == b"text/event-stream"


def _record(topic: str, value: object, *, from_seq: int, head_seq: int, ts: bytes) -> dict[str, Any]:
    found = re.search(rb'"\$ts":(\d+)', ts)
    assert found is not None
    return {
        "topic": topic,
        "records": [{"$seq": from_seq + 1, "$ts": int(found[1]), "data": value}],
        "from_seq": from_seq,
        "to_seq": from_seq + 1,
        "head_seq": head_seq,
    }


def test_a_tombstone_puts_its_topic_behind_the_gap_and_the_records_follow(rig: ServerRig) -> None:
    """inv: 58"""
    rig.ok("PUT", "/v0/topics/t", {"cap_records": 2})
    rig.write("t", 1, 2, 3, 4, 5)
    tombstone, record, _ = Watcher(rig, ["t"]).events()[1:]
    assert tombstone.data == {
        "topic": "t",
        "$type": "tombstone",
        "$seq": 4,
        "gap_from": 1,
        "gap_to": 3,
        "reason": "from_seq_too_old",
        "missed_estimate": 3,
        "earliest_seq": 4,
        "head_seq": 5,
    }
    assert tombstone.id == {"t": 3}
    assert (record.data["from_seq"], record.data["to_seq"], record.id) == (3, 5, {"t": 5})


def test_the_id_of_a_recreated_topic_skips_none_of_its_records(rig: ServerRig) -> None:
    """A client that comes back with that id has not seen them."""
    rig.write("t", 1, 2, 3)
    watcher = Watcher(rig, {"t": {"from_seq": 100}})
    tombstone = watcher.events()[1]
    assert (tombstone.data["reason"], tombstone.data["gap_to"], tombstone.id) == ("recreated", 3, {"t": 0})


# Refusals


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"topics": {}},
        {"topics": {"t": {"from_seq": 1 << 64}}},
        {"topics": {"t": {"from_seq": None}}},
        {"topics": {"t": {"from_ts": 1, "tail": True}}},
        {"topics": {"t": {"from_ts": 1, "from_seq": 0}}},
        {"topics": {"t": {}}, "heartbeat_ms": 1 << 64},
        {"topics": {"t": {}}, "max_batch_bytes": 1 << 64},
        {"topics": {"t": {}}, "limit": 1 << 32},
        {"topics": {"t": {}}, "consistency": "weak"},
        {"topics": {"t": {}}, "consistency": None},
    ],
)
def test_what_is_no_watch_is_refused_and_makes_no_session(rig: ServerRig, body: Any) -> None:
    rig.ok("PUT", "/v0/topics/t")
    assert rig.code("POST", "/v0/watch", body) == (400, "invalid_request")
    assert len(rig.server.watch.sessions) == 0


def test_too_many_topics_are_refused(rig: ServerRig) -> None:
    topics: dict[str, Any] = {f"t{number}": {} for number in range(257)}
    assert rig.code("POST", "/v0/watch?lenient=1", {"topics": topics}) == (400, "invalid_request")
    topics.popitem()
    assert rig.ok("POST", "/v0/watch?lenient=1", {"topics": topics})["topics"] == {}


def test_an_absent_topic_is_refused_or_dropped_and_never_made(rig: ServerRig) -> None:
    """inv: 21"""
    rig.ok("PUT", "/v0/topics/t")
    topics: dict[str, Any] = {"t": {}, "absent": {}}
    assert rig.code("POST", "/v0/watch", {"topics": topics}) == (404, "topic_not_found")
    assert list(rig.ok("POST", "/v0/watch?lenient=true", {"topics": topics})["topics"]) == ["t"]
    assert rig.code("GET", "/v0/topics/absent") == (404, "topic_not_found")


def test_strong_on_an_ephemeral_topic_is_refused(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/t", {"durability": "ephemeral"})
    body: dict[str, Any] = {"topics": {"t": {}}, "consistency": "strong"}
    assert rig.code("POST", "/v0/watch", body) == (400, "invalid_request")


def test_a_stream_with_no_topics_is_closed_at_once(rig: ServerRig) -> None:
    watcher = Watcher(rig, ["absent"], query="?lenient=1")
    assert watcher.short() == ["retry"]
    assert watcher.sink.ended


def test_sessions_have_a_cap(rig: ServerRig) -> None:
    rig = ServerRig(limits={"watch_sessions_max": 1})
    rig.ok("PUT", "/v0/topics/t")
    Watcher(rig, ["t"])
    status, body = rig.ask("POST", "/v0/watch", {"topics": {"t": {}}})
    assert (status, body["error"]["detail"]) == (429, {"limit": "max_watch_sessions", "max": 1})


def test_a_stream_takes_its_slot_and_gives_it_back_even_if_it_never_opens() -> None:
    rig = ServerRig(limits={"sse_connections_max": 1})
    rig.ok("PUT", "/v0/topics/t")
    watcher = Watcher(rig, ["t"])
    url = watcher.session["stream_url"]
    status, body = rig.ask("GET", url)
    assert (status, body["error"]["detail"]) == (429, {"limit": "max_sse_connections", "max": 1})
    watcher.close()
    unopened = rig.send("GET", url)
    assert rig.code("GET", url) == (429, "throttled")
    unopened.source.closed()  # type: ignore[union-attr]
    unopened.source.closed()  # type: ignore[union-attr]
    rig.stream(url)
    assert rig.server.admission.streams == 1


def test_a_stream_belongs_to_the_key_that_made_its_session() -> None:
    """inv: 61, 73"""
    rig = ServerRig(keys="one,two,reader:r:a")
    rig.ok("PUT", "/v0/topics/t", key="one")
    url = rig.ok("POST", "/v0/watch", {"topics": {"t": {}}}, key="one")["stream_url"]
    assert rig.code("GET", url) == (401, "unauthorized")
    assert rig.code("GET", url, key="two") == (401, "unauthorized")
    assert rig.code("GET", url, key="nobody") == (401, "unauthorized")
    assert rig.code("GET", "/v0/watch/wid_unknown") == (404, "not_found")
    rig.stream(url, key="one")
    rig.stream(url + "?token=one")
    assert rig.code("POST", "/v0/watch?lenient=1", {"topics": {"a": {}, "t": {}}}, key="reader") == (403, "forbidden")


# Resume


def test_a_session_goes_on_where_it_was_when_the_frame_was_made(rig: ServerRig) -> None:
    rig.write("t", 1, 2)
    watcher = Watcher(rig, ["t"])
    watcher.close()
    rig.write("t", 3)
    watcher.open()
    assert watcher.short() == ["retry", [3], 3]


@pytest.mark.parametrize(("seq", "values"), [(1, [2, 3]), (3, []), (99, [])])
def test_a_last_event_id_only_rewinds(rig: ServerRig, seq: int, values: list[int]) -> None:
    """inv: 56"""
    rig.write("t", 1, 2, 3)
    for form in ("header", "query"):
        watcher = Watcher(rig, ["t"])
        watcher.close()
        supplied = encode_id({"t": seq, "stranger": 0}).decode()
        if form == "header":
            watcher.open(headers={"last-event-id": supplied})
        else:
            watcher.open(f"?cursor={supplied}")
        assert watcher.short() == ["retry", *([values] if values else []), 3]


def test_the_header_wins_over_the_query_and_garbage_is_passed_over(rig: ServerRig) -> None:
    """inv: 56"""
    rig.write("t", 1, 2, 3)
    watcher = Watcher(rig, ["t"])
    watcher.close()
    watcher.open(f"?cursor={encode_id({'t': 0}).decode()}", headers={"last-event-id": encode_id({"t": 2}).decode()})
    assert watcher.short() == ["retry", [3], 3]
    watcher.close()
    watcher.open(headers={"last-event-id": "garbage"})
    assert watcher.short() == ["retry", 3]


def test_a_loss_after_a_rewind_reads_as_at_the_beginning(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/t", {"cap_records": 1})
    rig.write("t", 1)
    watcher = Watcher(rig, ["t"])
    watcher.close()
    rig.write("t", 2)
    rig.write("t", 3)
    watcher.open()
    assert watcher.events()[1].data["reason"] == "from_seq_too_old"


def test_a_session_ends_with_its_time(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/t")
    watcher = Watcher(rig, ["t"])
    rig.advance(2 * SESSION_TTL_MS)
    watcher.close()
    rig.advance(SESSION_TTL_MS)
    watcher.open()
    watcher.close()
    rig.advance(SESSION_TTL_MS + 1)
    assert rig.code("GET", watcher.session["stream_url"]) == (404, "not_found")


# Time


def test_heartbeats_come_after_silence_and_have_no_id(rig: ServerRig) -> None:
    """inv: 60"""
    rig.ok("PUT", "/v0/topics/t")
    watcher = Watcher(rig, ["t"], heartbeat_ms=1)
    watcher.events()
    rig.advance(999)
    assert watcher.events() == []
    rig.advance(1)
    now = rig.server.engine.time.now()
    assert watcher.sink.taken() == b": hb %d\n\n" % now
    rig.advance(600)
    rig.write("t", 1)
    assert watcher.short() == [[1], 1]
    rig.advance(999)
    assert watcher.events() == []
    rig.advance(1)
    assert watcher.short() == ["comment"]


@pytest.mark.parametrize(("asked", "given"), [(0, 1000), (999_999, 60_000), (20_000, 20_000)])
def test_the_interval_of_heartbeats_is_clamped(rig: ServerRig, asked: int, given: int) -> None:
    rig.ok("PUT", "/v0/topics/t")
    watcher = Watcher(rig, ["t"], heartbeat_ms=asked)
    watcher.events()
    rig.advance(given - 1)
    assert watcher.events() == []
    rig.advance(1)
    assert watcher.short() == ["comment"]


def test_a_setting_lowers_the_floor_of_heartbeats_and_never_raises_it() -> None:
    for setting, given in ((100, 100), (60_000, 1000), (0, 1)):
        rig = ServerRig(test_min_heartbeat_ms=setting)
        rig.ok("PUT", "/v0/topics/t")
        watcher = Watcher(rig, ["t"], heartbeat_ms=0)
        watcher.events()
        rig.advance(given)
        assert watcher.short() == ["comment"]


# Ends


def test_the_last_topic_takes_the_stream_with_it(rig: ServerRig) -> None:
    """inv: 59"""
    rig.write("a", 1)
    rig.ok("PUT", "/v0/topics/b")
    watcher = Watcher(rig, ["a", "b"])
    watcher.events()
    rig.ok("DELETE", "/v0/topics/a")
    told = watcher.events()
    assert told == [Event("topic-deleted", {"topic": "a", "head_seq": 1, "reason": "deleted"}, {"a": 1, "b": 0})]
    rig.write("b", "goes on")
    assert watcher.short() == [["goes on"], 1]
    assert not watcher.sink.ended
    rig.ok("DELETE", "/v0/topics/b")
    assert watcher.short() == ["topic-deleted"]
    assert watcher.sink.ended


def test_shutdown_is_told_with_an_id(rig: ServerRig) -> None:
    """inv: 84"""
    rig.write("t", 1)
    watcher = Watcher(rig, ["t"])
    watcher.events()
    watcher.stream.source.goodbye()
    (last,) = watcher.events()
    assert (last.event, last.data["code"], last.id) == ("error", "server_shutting_down", {"t": 1})
    assert last.data["message"]
    assert watcher.sink.ended


# Clients that do not read


def test_a_slow_client_gets_larger_batches_and_loses_nothing(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/t")
    watcher = Watcher(rig, ["t"])
    watcher.events()
    watcher.sink.room = False
    for number in range(20):
        rig.write("t", number)
    assert watcher.events() == []
    reads_again(watcher)
    assert watcher.short() == [list(range(20)), 20]


def stuck(rig: ServerRig) -> Watcher:
    """A stream whose client has stopped reading."""
    rig.ok("PUT", "/v0/topics/t")
    watcher = Watcher(rig, ["t"])
    watcher.events()
    watcher.sink.unsent = 100_000
    with pytest.MonkeyPatch.context() as patch:

        def full(data: bytes) -> None:
            watcher.sink.data += data
            watcher.sink.room = False

        patch.setattr(watcher.sink, "write", full)
        rig.write("t", "fills it")
    assert watcher.short() == [["fills it"], 1]
    return watcher


def reads_again(watcher: Watcher) -> None:
    """Its client has read everything."""
    watcher.sink.room = True
    watcher.stream.source.room()


def test_a_stuck_client_is_told_and_closed_and_its_session_is_kept(rig: ServerRig) -> None:
    watcher = stuck(rig)
    rig.write("t", "later")
    rig.advance(STUCK_MS - 1)
    assert watcher.events() == []
    rig.advance(1)
    (last,) = watcher.events()
    assert (last.event, last.data["code"], last.id) == ("error", "slow_consumer", None)
    assert watcher.sink.ended
    watcher.close()
    watcher.open()
    assert watcher.short() == ["retry", ["later"], 2]


def test_a_client_that_reads_slowly_is_not_stuck(rig: ServerRig) -> None:
    watcher = stuck(rig)
    for _ in range(20):
        watcher.sink.unsent -= 1000
        rig.advance(LOOK_MS)
    reads_again(watcher)
    rig.advance(2 * STUCK_MS)
    assert not watcher.sink.ended


def test_what_retention_takes_from_a_stuck_client_it_meets_as_a_loss(rig: ServerRig) -> None:
    """inv: 58"""
    watcher = stuck(rig)
    rig.ok("PUT", "/v0/topics/t", {"cap_records": 2})
    rig.write("t", *range(10))
    rig.advance(10_000)
    reads_again(watcher)
    events = watcher.events()
    assert [event.event for event in events] == ["tombstone", "record", "caught-up"]
    assert (events[0].data["reason"], events[0].data["gap_from"], events[0].data["gap_to"]) == ("cap", 2, 9)


def test_a_stream_that_is_gone_leaves_nothing_behind(rig: ServerRig) -> None:
    watcher = stuck(rig)
    watcher.close()
    rig.write("t", 2)
    rig.advance(10 * STUCK_MS)
    assert watcher.events() == []
    assert rig.server.admission.streams == 0
    assert not rig.server.engine.wakeups.names()


def test_attaching_counts_as_reading(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/t")
    assert rig.ok("GET", "/v0/topics/t?touch=false")["effective_priority"] == 0
    Watcher(rig, ["t"])
    assert rig.ok("GET", "/v0/topics/t?touch=false")["effective_priority"] == 500


def test_from_ts_begins_at_the_first_record_of_that_time(rig: ServerRig) -> None:
    stamps = []
    for number in range(4):
        rig.write("t", number)
        stamps.append(rig.clock.wall_ms())
        rig.advance(1000)
    watcher = Watcher(rig, {"t": {"from_ts": stamps[2]}})
    assert watcher.session["topics"]["t"]["from_seq"] == 2
    assert watcher.short() == ["retry", [2, 3], 4]


def test_the_gauges_know_streams_and_sessions(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/t")
    watcher = Watcher(rig, ["t"])
    figures = rig.server.figures()
    assert (figures.streams, figures.watch_sessions) == (1, 1)
    watcher.close()
    figures = rig.server.figures()
    assert (figures.streams, figures.watch_sessions) == (0, 1)


def test_events_are_read_back_as_they_stand() -> None:
    assert events_of(b": hb 5\n\n") == [Event("comment", "hb 5")]


# Epochs


def test_a_session_tells_epochs_to_a_reader_that_asks(rig: ServerRig) -> None:
    rig.write("t", 1)
    body = rig.ok("POST", "/v0/watch", {"topics": {"t": {}}, "include_epoch": True})
    assert body["topics"] == {"t": {"from_seq": 0, "head_seq": 1, "earliest_seq": 1, "epoch": 1}}


def test_a_watch_above_the_head_of_an_unchanged_epoch_begins_at_the_head(rig: ServerRig) -> None:
    rig.write("t", 1, 2, 3)
    watcher = Watcher(rig, {"t": {"from_seq": 100, "epoch": 1}})
    rig.write("t", 4)
    rig.run()
    caught_up, record, _ = watcher.events()[1:]
    assert (caught_up.event, record.event, record.data["from_seq"]) == ("caught-up", "record", 3)


def test_a_watch_with_the_epoch_of_a_deleted_topic_is_told_of_the_new_one(rig: ServerRig) -> None:
    rig.write("t", 1)
    rig.ok("DELETE", "/v0/topics/t")
    rig.write("t", 1, 2, 3)
    tombstone, record = Watcher(rig, {"t": {"from_seq": 1, "epoch": 1}}).events()[1:3]
    assert (tombstone.data["reason"], tombstone.data["gap_from"]) == ("recreated", 1)
    assert [one["$seq"] for one in record.data["records"]] == [1, 2, 3]
