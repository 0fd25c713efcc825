"""Reading over the wire: pages, filters, budgets, long polls (http-v0 §8, §9)."""

from typing import Any

import pytest

from driftq.engine.block_fetch import Fetch
from driftq.engine.read.topic_page import PageQuery
from driftq.errors import InternalError
from driftq.http.answer import Answer
from driftq.system.runtime import Pending
from driftq.testing import ServerRig, decoded_reply, settled

PATH = "/v0/topics/t/diff"


@pytest.fixture
def rig() -> ServerRig:
    return ServerRig()


def seqs(page: dict[str, Any]) -> list[int]:
    return [record["$seq"] for record in page["records"]]


def test_an_empty_body_asks_for_all_defaults(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/t", {})
    page = rig.ok("POST", PATH)
    figures = page.pop("performance")
    assert page == {
        "topic": "t",
        "records": [],
        "next_from_seq": 0,
        "head_seq": 0,
        "earliest_seq": 1,
        "caught_up": True,
        "tombstone": None,
        "lag": 0,
        "epoch": 1,
    }
    assert figures == {"server_total_ms": 0.0, "records_scanned": 0}
    assert rig.code("POST", PATH, raw=b"{}", headers={"content-type": "text/plain"})[0] == 415


def test_looping_visits_each_live_record_once(rig: ServerRig) -> None:
    """inv: 6, 8, 9"""
    rig.ok(
        "POST", "/v0/topics/t", {"records": [{"data": n, "tag": f"t{n % 3}", "node": f"n{n % 5}"} for n in range(40)]}
    )
    rig.ok("POST", "/v0/topics/t/delete", {"match": "t1"})
    for limit in (1, 7, 1000):
        found, cursor = [], 0
        while True:
            page = rig.diff("t", cursor, limit=limit, node="n2")
            assert page["caught_up"] == (page["next_from_seq"] == page["head_seq"])
            assert page["lag"] == page["head_seq"] - page["next_from_seq"]
            assert all(seq > cursor for seq in seqs(page))
            found += seqs(page)
            cursor = page["next_from_seq"]
            if page["caught_up"]:
                break
        assert found == [n + 1 for n in range(40) if n % 3 != 1 and n % 5 != 2]


@pytest.mark.parametrize(
    ("limit", "count"), [(None, 256), (0, 256), (1, 1), (1000, 1000), (1001, 1000), ((1 << 32) - 1, 1000)]
)
def test_limits_are_clamped(rig: ServerRig, limit: int | None, count: int) -> None:
    """inv: 35"""
    rig.write("t", *range(1100))
    page = rig.diff("t", **({} if limit is None else {"limit": limit}))
    assert seqs(page) == list(range(1, count + 1))
    assert page["performance"]["records_scanned"] == count


@pytest.mark.parametrize(
    "body",
    [
        {"limit": 1.0},
        {"limit": "5"},
        {"limit": True},
        {"limit": -1},
        {"limit": 1 << 32},
        {"limit": None},
        {"from_seq": -1},
        {"from_seq": 1 << 64},
        {"from_seq": None},
        {"from_seq": 1e3},
        {"wait_ms": 1 << 32},
        {"wait_ms": None},
        {"max_batch_bytes": 1 << 64},
        {"max_batch_bytes": "1"},
        {"include_tags": 1},
        {"include_meta": None},
        {"node": 1},
        {"node": [1]},
        {"node": [None]},
        {"node": {}},
        [],
        "x",
        None,
        1,
    ],
)
def test_wrong_types_are_400_also_for_an_absent_topic(rig: ServerRig, body: Any) -> None:
    """inv: 35"""
    rig.ok("PUT", "/v0/topics/t", {})
    assert rig.code("POST", PATH, body) == (400, "invalid_request")
    assert rig.code("POST", "/v0/topics/absent/diff", body) == (400, "invalid_request")


def test_unknown_fields_are_ignored_and_null_is_absent_where_it_may_be(rig: ServerRig) -> None:
    rig.write("t", 1)
    assert seqs(rig.diff("t", node=None, nonsense={"deep": [1, {}]})) == [1]


def test_the_byte_budget_stops_before_a_record_but_never_before_the_first(rig: ServerRig) -> None:
    """inv: 36"""
    rig.write("t", "x" * 8, "x" * 498, "x" * 8)
    page = rig.diff("t", max_batch_bytes=20)
    assert (seqs(page), page["next_from_seq"]) == ([1], 1)
    page = rig.diff("t", 1, max_batch_bytes=20)
    assert (seqs(page), page["next_from_seq"]) == ([2], 2)
    assert seqs(rig.diff("t", 2, max_batch_bytes=20)) == [3]


def test_the_node_filter_is_off_where_the_topic_says_so(rig: ServerRig) -> None:
    """inv: 27, 28"""
    records = [{"data": 1, "node": "a"}, {"data": 2, "node": "b"}, {"data": 3}]
    rig.ok("POST", "/v0/topics/t", {"records": records})
    assert seqs(rig.diff("t", node="a")) == [2, 3]
    assert seqs(rig.diff("t", node=["a", "b"])) == [3]
    assert seqs(rig.diff("t", node=[])) == [1, 2, 3]
    rig.ok("PUT", "/v0/topics/t", {"dedupe_node": False})
    page = rig.diff("t", node=["a", "b"])
    assert (seqs(page), page["caught_up"]) == ([1, 2, 3], True)


def test_fields_are_there_as_asked_for(rig: ServerRig) -> None:
    rig.ok("POST", "/v0/topics/t", {"records": [{"data": 1, "tag": "t", "node": "n", "meta": {"k": "v"}}]})
    assert set(rig.diff("t")["records"][0]) == {"$seq", "$ts", "$node", "meta", "data"}
    page = rig.diff("t", include_tags=True, include_meta=False)
    assert page["records"] == [{"$seq": 1, "$ts": rig.clock.wall_ms(), "$node": "n", "$tag": "t", "data": 1}]


def test_a_lost_prefix_is_told_once_and_before_the_records(rig: ServerRig) -> None:
    """inv: 10, 11, 12"""
    rig.ok("PUT", "/v0/topics/t", {"cap_records": 3})
    for n in range(6):
        rig.write("t", n)
    page = rig.diff("t")
    assert (page["tombstone"]["reason"], page["tombstone"]["gap_from"], page["tombstone"]["gap_to"]) == ("cap", 1, 3)
    assert page["tombstone"]["earliest_seq"] == page["earliest_seq"] == 4
    assert seqs(page) == [4, 5, 6]
    assert rig.diff("t", 3)["tombstone"] is None


def test_exactly_the_cursors_that_missed_something_are_told(rig: ServerRig) -> None:
    """Records 1 to 6 were evicted and 7 was deleted: whoever has read up to 6 has lost nothing.

    inv: 6, 10, 11
    """
    rig.ok("PUT", "/v0/topics/t", {"cap_records": 4})
    rig.ok("POST", "/v0/topics/t", {"records": [{"data": n, "tag": f"t{n}"} for n in range(1, 11)]})
    rig.ok("POST", "/v0/topics/t/delete", {"match": "t7"})
    for cursor in range(14):
        page = rig.diff("t", cursor)
        tombstone = page["tombstone"]
        assert page["earliest_seq"] == 8
        if cursor > 10:
            assert (tombstone["reason"], tombstone["gap_from"], tombstone["gap_to"]) == ("recreated", 1, 10)
            assert seqs(page) == [8, 9, 10]
            continue
        assert (tombstone is not None) == (cursor + 1 < 7), cursor
        if tombstone is not None:
            assert (tombstone["gap_from"], tombstone["gap_to"]) == (cursor + 1, 7)
            assert tombstone["earliest_seq"] == page["earliest_seq"]
        assert seqs(page) == [seq for seq in (8, 9, 10) if seq > cursor]


def test_a_record_is_there_to_the_last_millisecond_of_its_ttl(rig: ServerRig) -> None:
    """inv: 16"""
    rig.ok("PUT", "/v0/topics/t", {"ttl_ms": 100})
    rig.write("t", 1)
    rig.clock.advance(100)
    assert seqs(rig.diff("t")) == [1]
    rig.clock.advance(1)
    page = rig.diff("t")
    assert (seqs(page), page["tombstone"]["reason"]) == ([], "ttl")


def test_what_is_in_the_cold_tier_is_fetched_and_counted() -> None:
    rig = ServerRig(cold_dir="/cold", hot_retain_segments=0, cache_bytes=0)
    for n in range(64):
        rig.write("t", n)
    rig.advance(15_000)
    answer = rig.send("POST", PATH, {})
    assert isinstance(answer, Pending)
    rig.run()
    page = body_of(answer)
    assert seqs(page) == list(range(1, 65))
    assert page["performance"]["cold_segments_read"] == 4
    assert "cold_segments_read" not in rig.diff("t", 64)["performance"]


# Long polls


def parked(rig: ServerRig, from_seq: int = 0, wait_ms: int = 1000, **fields: Any) -> Pending[Any]:
    answer = rig.send("POST", PATH, {"from_seq": from_seq, "wait_ms": wait_ms, **fields})
    rig.run()
    assert isinstance(answer, Pending)
    assert not answer.settled
    return answer


def body_of(answer: Answer) -> dict[str, Any]:
    reply = settled(answer)
    assert reply is not None
    status, body = decoded_reply(reply)
    assert status == 200
    found: dict[str, Any] = body
    return found


def test_an_idle_poll_answers_at_its_deadline_and_not_before(rig: ServerRig) -> None:
    """inv: 37"""
    rig.write("t", 1)
    answer = parked(rig, 1)
    rig.advance(999)
    assert not answer.settled
    rig.advance(1)
    page = body_of(answer)
    assert (page["records"], page["next_from_seq"], page["caught_up"]) == ([], 1, True)
    assert page["performance"]["server_total_ms"] == 1000.0


def test_waiting_is_clamped_to_thirty_seconds(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/t", {})
    answer = parked(rig, wait_ms=90_000)
    rig.advance(29_999)
    assert not answer.settled
    rig.advance(1)
    assert body_of(answer)["records"] == []


def test_one_append_wakes_every_poll_of_its_topic_and_no_other(rig: ServerRig) -> None:
    """inv: 37"""
    rig.ok("PUT", "/v0/topics/t", {})
    answers = [parked(rig) for _ in range(5)]
    rig.write("other", 1)
    assert not any(answer.settled for answer in answers)
    rig.write("t", "a", "b")
    assert [seqs(body_of(answer)) for answer in answers] == [[1, 2]] * 5


def test_a_poll_does_not_wait_where_there_is_something_to_say(rig: ServerRig) -> None:
    """inv: 37"""
    rig.ok("PUT", "/v0/topics/t", {"cap_records": 2})
    rig.ok("POST", "/v0/topics/t", {"records": [{"data": n, "node": "me"} for n in range(3)]})
    assert seqs(rig.diff("t", 1, wait_ms=9000)) == [2, 3]
    assert rig.diff("t", 0, node="me", wait_ms=9000)["tombstone"] is not None
    assert rig.diff("t", 9, node="me", wait_ms=9000)["tombstone"] is not None
    page = rig.diff("t", 1, node="me", limit=1, wait_ms=9000)
    assert (page["records"], page["next_from_seq"], page["caught_up"]) == ([], 2, False)


def test_a_filtered_append_ends_a_poll_with_the_cursor_moved(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/t", {})
    answer = parked(rig, node="me")
    rig.ok("POST", "/v0/topics/t", {"records": [{"data": 1}], "node": "me"})
    page = body_of(answer)
    assert (page["records"], page["next_from_seq"], page["caught_up"]) == ([], 1, True)


def test_a_delete_of_records_is_no_news(rig: ServerRig) -> None:
    rig.write("t", 1, 2)
    answer = parked(rig, 2)
    rig.ok("POST", "/v0/topics/t/delete", {"before_seq": 2})
    assert not answer.settled
    rig.advance(1000)
    assert body_of(answer)["next_from_seq"] == 2


def test_deleting_the_topic_ends_a_poll_with_404(rig: ServerRig) -> None:
    rig.write("t", 1)
    answer = parked(rig, 1)
    rig.ok("DELETE", "/v0/topics/t")
    reply = settled(answer)
    assert reply is not None
    assert decoded_reply(reply).body["error"]["code"] == "topic_not_found"


def test_a_caller_who_hung_up_is_answered_at_once_and_leaves_nothing_behind(rig: ServerRig) -> None:
    rig.write("t", 1)
    request = rig.request("POST", PATH, {"from_seq": 1, "wait_ms": 20_000})
    answer = rig.app.handle(request)
    rig.run()
    request.hang_up()
    request.hang_up()
    assert body_of(answer)["records"] == []
    rig.write("t", 2)
    rig.advance(30_000)
    assert body_of(answer)["records"] == []


def test_a_poll_counts_as_a_read_when_it_begins_and_when_it_delivers(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/t", {})
    parked(rig)
    began = rig.clock.wall_ms()
    rig.advance(100)
    assert rig.ok("GET", "/v0/topics/t?touch=false")["last_read_ts"] == began
    rig.write("t", 1)
    assert rig.ok("GET", "/v0/topics/t?touch=false")["last_read_ts"] == began + 100


def test_a_poll_that_has_to_fetch_reads_again_when_it_is_there(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.ok("PUT", "/v0/topics/t", {})
    answers = [parked(rig) for _ in range(2)]
    read, fetches = rig.server.engine.diff, [Fetch(held=[]), Fetch(held=[])]
    monkeypatch.setattr(rig.server.engine, "diff", lambda *_: fetches.pop())
    first, second = fetches
    rig.write("t", 1)
    assert (fetches, [answer.settled for answer in answers]) == ([], [False, False])
    monkeypatch.setattr(rig.server.engine, "diff", read)
    first.resolve(None)
    second.fail(InternalError("no file handle"))
    replies = [settled(answer) for answer in answers]
    assert sorted(reply.status for reply in replies if reply is not None) == [200, 500]


def test_a_bug_met_by_one_poll_is_its_own(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig.ok("PUT", "/v0/topics/t", {})
    answers = [parked(rig) for _ in range(3)]
    read, calls = rig.server.engine.diff, iter(range(3))

    def broken(name: str, query: PageQuery) -> Any:
        if next(calls) == 1:
            raise ZeroDivisionError("inside")
        return read(name, query)

    monkeypatch.setattr(rig.server.engine, "diff", broken)
    rig.write("t", 1)
    assert [reply.status for answer in answers if (reply := settled(answer))] == [200, 500, 200]
    assert "inside" in caplog.text


def test_a_cursor_above_the_head_of_an_unchanged_epoch_is_no_loss(rig: ServerRig) -> None:
    rig.ok("POST", "/v0/topics/t", {"records": [{"data": n} for n in range(8)]})
    epoch = rig.diff("t", 0)["epoch"]
    page = rig.diff("t", 999, epoch=epoch)
    assert (page["tombstone"], page["records"], page["next_from_seq"], page["caught_up"]) == (None, [], 8, True)
    rig.ok("POST", "/v0/topics/t", {"records": [{"data": "next"}]})
    assert seqs(rig.diff("t", page["next_from_seq"], epoch=epoch)) == [9]


def test_a_cursor_of_another_epoch_is_told_of_the_recreation_whatever_its_seq(rig: ServerRig) -> None:
    rig.ok("POST", "/v0/topics/t", {"records": [{"data": n} for n in range(2)]})
    before = rig.diff("t", 0)["epoch"]
    rig.ok("DELETE", "/v0/topics/t")
    rig.ok("POST", "/v0/topics/t", {"records": [{"data": n} for n in range(5)]})
    page = rig.diff("t", 2, epoch=before)
    gap = page["tombstone"]
    assert (gap["reason"], gap["gap_from"], gap["gap_to"], seqs(page)) == ("recreated", 1, 5, [1, 2, 3, 4, 5])
    assert page["epoch"] != before
    assert rig.diff("t", 2, epoch=page["epoch"])["tombstone"] is None
    assert rig.diff("t", 9)["tombstone"]["reason"] == "recreated"


def test_a_page_that_begins_at_a_time_has_no_use_for_an_epoch(rig: ServerRig) -> None:
    rig.ok("POST", "/v0/topics/t", {"records": [{"data": 1}]})
    page = rig.ok("POST", PATH, {"from_ts": 0, "epoch": 77})
    assert (page["tombstone"], seqs(page)) == (None, [1])
    assert rig.code("POST", PATH, {"epoch": -1})[0] == 400


def test_a_poll_above_the_head_of_an_unchanged_epoch_gets_the_next_record(rig: ServerRig) -> None:
    rig.write("t", 1)
    answer = rig.send("POST", PATH, {"from_seq": 999, "epoch": 1, "wait_ms": 5000})
    assert isinstance(answer, Pending)
    rig.write("t", 2)
    rig.run()
    page = body_of(answer)
    assert (seqs(page), page["next_from_seq"]) == ([2], 2)


@pytest.mark.parametrize("durability", ["memory", "ephemeral"])
def test_where_a_crash_may_have_moved_the_head_back_a_cursor_above_it_reads_again(
    rig: ServerRig, durability: str
) -> None:
    """Seqs are given out twice there: what is below the cursor may be new."""
    rig.ok("PUT", "/v0/topics/t", {"durability": durability})
    rig.write("t", 1, 2)
    page = rig.diff("t", 9, epoch=1)
    assert (page["tombstone"], seqs(page), page["next_from_seq"]) == (None, [], 2), "no crash since it was created"
    rig.crash()
    rig.write("t", 3)
    page = rig.diff("t", 9, epoch=1)
    assert page["tombstone"]["reason"] == "recreated"
    assert len(seqs(page)) >= 1
