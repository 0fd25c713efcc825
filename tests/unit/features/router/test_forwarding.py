"""Forwarding, live: when copies are made, when they wait, what is passed over."""

from typing import Any

import pytest

from driftq.features.router.forwarding import Forwarder
from driftq.system.runtime import Pending
from driftq.testing import ServerRig, decoded_reply, settled
from tests.unit.failing import BugError, fail_once
from tests.unit.features.router.routed_rig import forwarded, listed_head, put_router, put_topic, routed, values


def frames(rig: ServerRig) -> int:
    return sum(shard.counters.frames for shard in rig.server.engine.shards.all)


def test_one_write_is_one_frame_whatever_the_fan_out() -> None:
    """proves: G-COPY-5; inv: 45"""
    rig = ServerRig()
    put_topic(rig, "a", *"bcdef")
    for dest in "bcdef":
        put_router(rig, dest, "a", dest)
    before = frames(rig)
    rig.write("a", 1)
    assert [values(rig, dest) for dest in "bcdef"] == [[1]] * 5
    assert frames(rig) - before == 1


def test_a_read_right_behind_a_write_sees_the_copy() -> None:
    """inv: 44"""
    rig = ServerRig()
    routed(rig, "a", "b")
    for number in range(1, 4):
        reads: list[Any] = []
        write = rig.send("POST", "/v0/topics/a", {"records": [{"data": number}]})
        assert isinstance(write, Pending)
        write.then(lambda _, reads=reads: reads.append(rig.send("GET", "/v0/topics/b")))  # type: ignore[misc]
        rig.run()
        reply = settled(reads[0])
        assert reply is not None
        assert decoded_reply(reply).body["head_seq"] == number


def test_copies_go_on_along_a_chain_although_nobody_reads() -> None:
    rig = ServerRig()
    routed(rig, "a", "b", "c", "d")
    rig.write("a", *range(20))
    rig.advance(50)
    assert [listed_head(rig, topic) for topic in "bcd"] == [20, 20, 20]


def test_an_fsync_dest_gets_nothing_of_a_disk_source_that_is_not_synced() -> None:
    rig = ServerRig()
    put_topic(rig, "a", durability="disk")
    put_topic(rig, "b")
    put_router(rig, "r", "a", "b")
    rig.write("a", 1)
    rig.runtime.hold("driftq-wal-0")
    rig.write("a", 2)
    read = rig.send("POST", "/v0/topics/b/diff", {"from_seq": 1})
    rig.run()
    assert listed_head(rig, "b") == 1
    assert not read.settled  # type: ignore[union-attr]
    rig.runtime.release("driftq-wal-0")
    rig.run()
    assert read.settled  # type: ignore[union-attr]
    assert values(rig, "b") == [1, 2]


@pytest.mark.parametrize("source", ["ephemeral", "memory"])
def test_copies_of_what_does_not_last_are_logged_where_dest_does(source: str) -> None:
    """http-v0 §11.3; and none is made twice after a restart."""
    rig = ServerRig()
    put_topic(rig, "a", durability=source)
    put_topic(rig, "b")
    put_router(rig, "r", "a", "b")
    rig.write("a", 1, 2)
    assert values(rig, "b") == [1, 2]
    rig.crash()
    assert values(rig, "b") == [1, 2]
    assert forwarded(rig, "r") == 2
    rig.write("a", 3)
    assert values(rig, "b") == [1, 2, 3]


def test_an_ephemeral_dest_is_empty_after_a_restart_and_goes_on() -> None:
    rig = ServerRig()
    put_topic(rig, "a")
    put_topic(rig, "b", durability="ephemeral")
    put_router(rig, "r", "a", "b")
    rig.write("a", 1, 2)
    assert values(rig, "b") == [1, 2]
    rig.crash()
    assert values(rig, "b") == []
    rig.write("a", 3)
    assert values(rig, "b") == [3]


def test_a_class_that_was_ephemeral_does_not_bring_its_copies_back() -> None:
    rig = ServerRig()
    put_topic(rig, "a")
    put_topic(rig, "b", durability="ephemeral")
    put_router(rig, "r", "a", "b")
    rig.write("a", 1, 2)
    assert values(rig, "b") == [1, 2]
    put_topic(rig, "b")
    rig.write("a", 3)
    assert rig.diff("b", 2)["records"][0]["$seq"] == 3
    rig.crash()
    assert [(record["$seq"], record["data"]) for record in rig.diff("b")["records"]] == [(3, 3)]


def test_a_full_dest_stops_its_router_and_room_lets_it_go_on() -> None:
    """inv: 48"""
    rig = ServerRig()
    put_topic(rig, "a")
    put_topic(rig, "b", cap_records=2, discard="reject")
    put_router(rig, "r", "a", "b")
    rig.write("a", *range(5))
    assert values(rig, "b") == [0, 1]
    assert forwarded(rig, "r") == 2
    rig.ok("POST", "/v0/topics/b/delete", {"before_seq": 2})
    rig.advance(50)
    assert listed_head(rig, "b") == 3
    assert values(rig, "b") == [1, 2]


def test_the_quota_of_the_server_holds_copies_back() -> None:
    rig = ServerRig(limits={"total_bytes_max": 10})
    put_topic(rig, "a", "b")
    put_router(rig, "r", "a", "b")
    rig.write("a", "xxxx")
    assert values(rig, "b") == []
    rig.ok("POST", "/v0/topics/a/delete", {"before_seq": 1})
    rig.write("c", 1)
    rig.ok("DELETE", "/v0/topics/c")
    assert forwarded(rig, "r") == 0


def test_a_cap_takes_nothing_from_a_source_that_dest_has_room_for() -> None:
    rig = ServerRig()
    put_topic(rig, "a", cap_records=2)
    put_topic(rig, "b", "c")
    put_router(rig, "ab", "a", "b")
    put_router(rig, "bc", "b", "c")
    rig.write("a", *range(10))
    assert values(rig, "b") == list(range(10))
    rig.advance(50)
    assert values(rig, "c") == list(range(10))
    assert rig.diff("b")["tombstone"] is None


def test_what_a_source_lost_before_it_was_copied_is_a_gap_in_dest_that_survives() -> None:
    """proves: G-COPY-4; inv: 52"""
    rig = ServerRig()
    put_topic(rig, "a", cap_records=2)
    put_topic(rig, "b", cap_records=1, discard="reject")
    put_router(rig, "r", "a", "b")
    rig.write("a", 1)
    assert values(rig, "b") == [1]
    rig.write("a", 2, 3)
    rig.write("a", 4, 5)
    put_topic(rig, "b")
    for _ in range(2):
        assert values(rig, "b") == [1]
        page = rig.diff("b", 1)
        gap = page["tombstone"]
        assert (gap["reason"], gap["gap_from"], gap["gap_to"], gap["$seq"]) == ("source_trim", 2, 3, 4)
        assert [record["data"] for record in page["records"]] == [4, 5]
        assert forwarded(rig, "r") == 5
        rig.crash()


def test_what_was_deleted_before_it_was_copied_is_passed_over_and_stays_so() -> None:
    """proves: G-COPY-2"""
    rig = ServerRig()
    put_topic(rig, "a")
    put_topic(rig, "b", cap_records=1, discard="reject")
    put_router(rig, "r", "a", "b")
    rig.write("a", 1, 2, 3)
    assert values(rig, "b") == [1]
    rig.ok("POST", "/v0/topics/a/delete", {"before_seq": 3})
    put_topic(rig, "b")
    for _ in range(2):
        assert values(rig, "b") == [1, 3]
        assert forwarded(rig, "r") == 2
        rig.crash()


def test_a_copy_of_a_copy_ends_at_the_eighth_hop() -> None:
    """inv: 50"""
    rig = ServerRig()
    put_topic(rig, "a", "b", "c")
    for source, dest in ("ab", "bc", "ca"):
        put_router(rig, source + dest, source, dest, allow_cycle=True)
    rig.write("a", "v")
    rig.advance(200)
    assert sum(listed_head(rig, topic) for topic in "abc") == 9
    rig.crash()
    rig.advance(200)
    assert sum(listed_head(rig, topic) for topic in "abc") == 9


def test_exactly_once_recognises_copies_that_are_there_when_its_cursor_has_gone_back() -> None:
    """inv: 51; deleting a copy takes the evidence away."""
    rig = ServerRig()
    routed(rig, "a", "b", guarantee="exactly_once")
    rig.write("a", 1, 2, 3)
    assert values(rig, "b") == [1, 2, 3]
    router = rig.server.routers.get("ab")
    router.cursor = 0
    assert values(rig, "b") == [1, 2, 3]
    assert router.cursor == 3
    rig.ok("POST", "/v0/topics/b/delete", {"before_seq": 2})
    router.cursor = 0
    assert values(rig, "b") == [2, 3, 1]


def test_a_changed_rule_holds_for_later_records_only() -> None:
    rig = ServerRig()
    put_topic(rig, "a")
    put_topic(rig, "b", cap_records=1, discard="reject")
    put_router(rig, "r", "a", "b")
    rig.write("a", 1, 2)
    put_router(rig, "r", "a", "b", filter="x")
    rig.write("a", 3)
    put_topic(rig, "b")
    for _ in range(2):
        assert values(rig, "b") == [1, 2]
        rig.crash()


def test_copies_wait_their_turn_behind_a_write_that_is_under_way() -> None:
    rig = ServerRig()
    put_topic(rig, "a", durability="ephemeral")
    put_topic(rig, "b", durability="memory")
    put_router(rig, "r", "a", "b")
    put_topic(rig, "c")
    put_router(rig, "s", "a", "c")
    rig.runtime.hold("driftq-wal-0")
    direct = rig.send("POST", "/v0/topics/c", {"records": [{"data": "direct"}]})
    copied = rig.send("POST", "/v0/topics/a", {"records": [{"data": "copy"}]})
    rig.run()
    assert listed_head(rig, "c") == 0
    rig.runtime.release("driftq-wal-0")
    rig.run()
    assert settled_all(direct, copied)
    assert values(rig, "c") == ["direct", "copy"]


def settled_all(*answers: Any) -> bool:
    return all(getattr(answer, "settled", True) for answer in answers)


def test_two_routers_of_one_dest_copy_record_by_record() -> None:
    rig = ServerRig()
    put_topic(rig, "a", "b")
    put_router(rig, "one", "a", "b")
    put_router(rig, "two", "a", "b", preserve_tag=False)
    rig.write("a", 1, 2)
    assert values(rig, "b") == [1, 1, 2, 2]
    rig.crash()
    assert values(rig, "b") == [1, 1, 2, 2]


def test_an_inflow_that_fails_is_tried_again_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = ServerRig()
    put_topic(rig, *"abc")
    for dest in "bc":
        put_router(rig, dest, "a", dest)
    fail_once(monkeypatch, Forwarder, "_step")
    with pytest.raises(BugError):
        rig.write("a", 1)
    rig.advance(100)
    assert [listed_head(rig, dest) for dest in "bc"] == [1, 1]


@pytest.mark.parametrize(
    ("shards", "ended", "waits"), [(1, False, False), (2, False, True), (2, True, False)], ids=["one", "two", "ended"]
)
def test_between_shards_a_write_to_a_disk_dest_is_shown_when_it_is_synced(
    shards: int, *, ended: bool, waits: bool
) -> None:
    """proves: G-COPY-3"""
    rig = ServerRig(wal_shards=shards)
    put_topic(rig, "a", "b", durability="disk")
    put_router(rig, "ab", "a", "b")
    rig.restart()
    rig.write("b", 1)
    before = listed_head(rig, "b")
    if ended:
        rig.ok("DELETE", "/v0/routers/ab")
    for shard in range(shards):
        rig.runtime.hold(f"driftq-wal-{shard}")
    rig.send("POST", "/v0/topics/b", {"records": [{"data": 2}]})
    rig.run()
    assert listed_head(rig, "b") == before + (0 if waits else 1)
    for shard in range(shards):
        rig.runtime.release(f"driftq-wal-{shard}")
    rig.run()
    assert values(rig, "b")[-1] == 2


def _numbered(rig: ServerRig, topic: str) -> dict[int, Any]:
    return {record["$seq"]: record["data"] for record in rig.diff(topic)["records"]}


def test_a_write_while_a_router_is_made_is_in_line_with_its_copies() -> None:
    """proves: G-COPY-3"""
    rig = ServerRig(wal_shards=2)
    put_topic(rig, "a", "b", durability="disk")
    for topic in "ab":
        rig.write(topic, 0)
    rig.advance(100)
    of_source, of_dest = [f"driftq-wal-{rig.server.engine.topic(topic).id % 2}" for topic in "ab"]
    rig.runtime.hold(of_source)
    rig.send("PUT", "/v0/routers/ab", {"source": "a", "dest": "b"})
    rig.run()
    rig.runtime.hold(of_dest)
    rig.send("POST", "/v0/topics/b", {"records": [{"data": "direct"}]})
    rig.run()
    rig.runtime.release(of_source)
    rig.send("POST", "/v0/topics/a", {"records": [{"data": "later"}]})
    rig.advance(50)
    assert listed_head(rig, "b") == 1
    rig.runtime.release(of_dest)
    rig.run()
    assert _numbered(rig, "b") == {1: 0, 2: "direct", 3: "later"}
    rig.crash()
    assert _numbered(rig, "b") == {1: 0, 2: "direct", 3: "later"}


@pytest.mark.parametrize("later", ["disk", "fsync"])
def test_a_logged_copy_between_shards_is_shown_when_it_is_synced(later: str) -> None:
    """proves: G-COPY-3"""
    rig = ServerRig(wal_shards=2)
    put_topic(rig, "a", durability="ephemeral")
    put_topic(rig, "b", durability="disk")
    put_router(rig, "ab", "a", "b")
    rig.write("a", 0)
    rig.advance(100)
    of_dest = f"driftq-wal-{rig.server.engine.topic('b').id % 2}"
    rig.runtime.hold(of_dest)
    rig.send("POST", "/v0/topics/a", {"records": [{"data": "logged"}]})
    rig.run()
    rig.send("PUT", "/v0/topics/a", {"durability": later})
    rig.run()
    rig.send("POST", "/v0/topics/a", {"records": [{"data": "derived"}]})
    rig.advance(50)
    assert listed_head(rig, "b") == 1
    rig.crash()
    assert _numbered(rig, "b")[1] == 0
    rig.close()


def test_a_mark_is_not_applied_again_behind_a_checkpoint_of_its_effect() -> None:
    """A floor that settles late does not take the topic back to its own number: what is behind it is shown already."""
    rig = ServerRig()
    put_topic(rig, "a", durability="memory")
    put_topic(rig, "b", durability="ephemeral")
    rig.write("b", *range(4))
    put_topic(rig, "b", durability="disk", cap_records=5)
    put_router(rig, "ab", "a", "b")
    rig.write("b", "x")
    rig.write("a", "y")
    rig.advance(200)
    rig.diff("b")
    rig.runtime.hold("driftq-wal-0")
    rig.send("POST", "/v0/topics/b", {"records": [{"data": "z"}]})
    rig.run()
    taken = rig.server.engine.checkpointer.run()
    rig.send("POST", "/v0/topics/a", {"records": [{"data": "later"}]})
    rig.run()
    rig.runtime.release("driftq-wal-0")
    rig.run()
    assert taken.result()
    total = forwarded(rig, "ab")
    rig.crash()
    rig.run()
    assert forwarded(rig, "ab") == total == 2
