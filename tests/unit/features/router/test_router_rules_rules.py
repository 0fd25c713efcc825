"""Which routers there may be, and what a refused one leaves behind: nothing."""

from typing import Any

from driftq.errors import ShardStoppedError
from driftq.system.runtime import Pending
from driftq.testing import ServerRig, decoded_reply, settled
from tests.unit.features.router.routed_rig import put_router, put_topic, routed, values


def refused(rig: ServerRig, name: str, **body: Any) -> tuple[int, Any]:
    status, found = rig.ask("PUT", f"/v0/routers/{name}", body)
    return status, found["error"].get("detail", {})


def names(rig: ServerRig, path: str, key: str) -> list[str]:
    return [row[key] for row in rig.ok("GET", path)[f"{key}s"]]


def test_a_second_source_for_one_dest_is_refused_and_creates_no_topic() -> None:
    """inv: 49"""
    rig = ServerRig()
    routed(rig, "a", "b")
    assert refused(rig, "r", source="x", dest="b") == (409, {"topic": "b", "reason": "router_dest_fan_in"})
    assert names(rig, "/v0/topics", "topic") == ["a", "b"]
    assert names(rig, "/v0/routers", "router") == ["ab"]


def test_a_cycle_is_refused_with_its_way_unless_it_is_wanted() -> None:
    """inv: 50"""
    rig = ServerRig()
    routed(rig, "a", "b", "c")
    assert refused(rig, "ca", source="c", dest="a") == (409, {"cycle": ["c", "a", "b", "c"]})
    put_router(rig, "ca", "c", "a", allow_cycle=True)
    assert refused(rig, "ab", source="a", dest="b")[0] == 409
    put_router(rig, "ab", "a", "b", allow_cycle=True)


def test_a_router_cannot_be_pointed_elsewhere() -> None:
    rig = ServerRig()
    routed(rig, "a", "b")
    status, detail = refused(rig, "ab", source="a", dest="c")
    assert (status, detail["reason"], detail["existing_dest"]) == (409, "router_repoint_forbidden", "b")
    assert rig.ask("GET", "/v0/topics/c").status == 404


def test_as_many_routers_as_there_may_be_and_changes_of_them() -> None:
    rig = ServerRig(limits={"routers_max": 1})
    routed(rig, "a", "b")
    put_router(rig, "ab", "a", "b", preserve_tag=False)
    assert refused(rig, "r", source="x", dest="y") == (429, {"limit": "max_routers", "max": 1})
    assert rig.ask("GET", "/v0/topics/x").status == 404


def test_where_one_topic_too_many_would_be_made_none_is() -> None:
    rig = ServerRig(limits={"topics_max": 1})
    assert refused(rig, "r", source="a", dest="b") == (429, {"limit": "max_topics", "max": 1})
    assert names(rig, "/v0/topics", "topic") == []
    assert names(rig, "/v0/routers", "router") == []


def test_racing_creations_of_one_router_make_one() -> None:
    rig = ServerRig()
    body = {"source": "a", "dest": "b"}
    answers = [rig.send("PUT", "/v0/routers/r", body) for _ in range(5)]
    rig.run()
    replies = [settled(answer) for answer in answers]
    assert sorted(reply.status for reply in replies if reply is not None) == [200, 200, 200, 200, 201]


def test_a_router_that_races_with_the_deletion_of_its_topic_ends_with_both_or_without_it() -> None:
    rig = ServerRig()
    for topic in ("a", "b"):
        routed(rig, "a", "b")
        rig.ok("DELETE", "/v0/routers/ab")
        put = rig.send("PUT", "/v0/routers/ab", {"source": "a", "dest": "b"})
        gone = rig.send("DELETE", f"/v0/topics/{topic}")
        rig.run()
        assert isinstance(put, Pending)
        assert isinstance(gone, Pending)
        there = rig.ask("GET", "/v0/routers/ab").status == 200
        both = all(rig.ask("GET", f"/v0/topics/{name}").status == 200 for name in "ab")
        assert both or not there
        rig.crash()
        assert (rig.ask("GET", "/v0/routers/ab").status == 200) == there


def test_deleting_a_topic_takes_its_routers_and_says_which_and_they_stay_away() -> None:
    """inv: 42; a source's copies stay in dest as they were."""
    rig = ServerRig()
    routed(rig, "a", "b", "c")
    put_topic(rig, "d")
    put_router(rig, "ad", "a", "d")
    rig.write("a", 1, 2)
    assert values(rig, "b") == [1, 2]
    assert rig.ok("DELETE", "/v0/topics/b")["routers_removed"] == ["ab", "bc"]
    assert rig.ok("DELETE", "/v0/topics/a")["routers_removed"] == ["ad"]
    assert rig.ok("DELETE", "/v0/topics/a") | {"performance": None} == {
        "topic": "a",
        "deleted": False,
        "routers_removed": [],
        "performance": None,
    }
    put_topic(rig, "a")
    rig.write("a", "new")
    for _ in range(2):
        assert names(rig, "/v0/routers", "router") == []
        assert values(rig, "d") == [1, 2]
        rig.crash()


def test_a_new_router_begins_at_the_head_of_its_source_over_restarts() -> None:
    """inv: 47"""
    rig = ServerRig()
    put_topic(rig, "a", "b")
    rig.write("a", "old")
    put_router(rig, "r", "a", "b")
    rig.write("a", "new")
    for _ in range(2):
        assert values(rig, "b") == ["new"]
        rig.crash()


def test_a_router_and_its_place_survive_a_stop_and_a_crash() -> None:
    rig = ServerRig()
    put_topic(rig, "a", "b")
    put = put_router(rig, "r", "a", "b", filter=["tag", "Glob", "x*"], preserve_node=False, guarantee="exactly_once")
    rig.ok("POST", "/v0/topics/a", {"records": [{"data": 1, "tag": "xy"}, {"data": 2}]})
    expected = {key: value for key, value in put.items() if key not in ("created", "performance")}
    for again in (rig.crash, rig.restart, rig.crash):
        found = rig.ok("GET", "/v0/routers/r")
        assert {key: found[key] for key in expected} == expected
        assert found["forwarded_total"] == 1
        again()


def test_a_router_whose_frame_cannot_be_logged_is_not_there() -> None:
    rig = ServerRig()
    put_topic(rig, "a", "b")
    rig.server.engine.change_log.shard_of(rig.server.engine.topic("a")).stopped = ShardStoppedError("a sync failed")
    status, body = rig.ask("PUT", "/v0/routers/r", {"source": "a", "dest": "b"})
    assert (status, body["error"]["code"]) == (500, "internal")
    assert rig.ask("GET", "/v0/routers/r").status == 404


def test_answers_are_envelopes_for_bad_names_and_bodies() -> None:
    rig = ServerRig()
    assert rig.code("PUT", "/v0/routers/%3Ex", {"source": "a", "dest": "b"}) == (400, "invalid_request")
    assert rig.code("PUT", "/v0/routers/r", {"source": "a", "dest": "a"}) == (400, "invalid_request")
    assert rig.code("PUT", "/v0/routers/r", {"source": "a"}) == (400, "invalid_request")
    assert rig.code("PUT", "/v0/routers/r", {"source": "a", "dest": "b", "filter": 7}) == (400, "invalid_request")
    assert rig.code("GET", "/v0/routers/r") == (404, "router_not_found")
    assert decoded_reply(rig.reply("DELETE", "/v0/routers/r")).body["deleted"] is False
