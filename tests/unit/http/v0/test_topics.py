"""Topics over the wire: config, state, lists, deletion (http-v0 §5, §6)."""

from typing import Any

import pytest

from driftq.testing import ServerRig, decoded_reply, settled

DEFAULTS: dict[str, Any] = {
    "type": "log",
    "ttl_ms": 0,
    "cap_records": 0,
    "cap_bytes": 0,
    "discard": "old",
    "durable": False,
    "durability": "disk",
    "priority": None,
    "auto_priority": True,
    "auto_create": True,
    "idempotency_window_ms": 120_000,
    "dedupe_node": True,
    "lease_ms": 30_000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "leases_durable": False,
}


@pytest.fixture
def rig() -> ServerRig:
    return ServerRig()


def test_a_put_creates_once_and_echoes_all_seventeen_fields(rig: ServerRig) -> None:
    """inv: 39"""
    status, body = rig.ask("PUT", "/v0/topics/t")
    assert (status, body["topic"], body["created"], body["config"]) == (201, "t", True, DEFAULTS)
    assert isinstance(body["performance"]["server_total_ms"], float)
    status, body = rig.ask("PUT", "/v0/topics/t", {"durable": True})
    assert (status, body["created"]) == (200, False)
    assert body["config"] == DEFAULTS | {"durable": True, "durability": "fsync"}
    assert rig.ok("GET", "/v0/topics/t")["config"] == body["config"]


def test_a_put_replaces_and_never_changes_the_type(rig: ServerRig) -> None:
    """inv: 38, 40"""
    rig.ok("PUT", "/v0/topics/q", {"type": "queue", "lease_ms": 1, "claim_jitter_ms": 99_999, "cap_records": 5})
    config = rig.ok("GET", "/v0/topics/q")["config"]
    assert (config["lease_ms"], config["claim_jitter_ms"]) == (100, 5000)
    status, body = rig.ask("PUT", "/v0/topics/q", {})
    assert (status, body["error"]["code"]) == (409, "topic_exists_incompatible")
    assert body["error"]["detail"] == {"topic": "q", "existing_type": "queue", "requested_type": "log"}
    assert rig.ok("GET", "/v0/topics/q")["config"] == config
    assert rig.ok("PUT", "/v0/topics/q", {"type": "queue"})["config"] == DEFAULTS | {"type": "queue"}


def test_a_patch_changes_what_it_names_and_answers_like_a_put(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/t", {"durability": "fsync", "ttl_ms": 60_000, "priority": 3, "cap_records": 5})
    rig.write("t", *range(5))
    status, body = rig.ask("PATCH", "/v0/topics/t", {"cap_records": 2, "priority": None, "unknown": 1})
    changed = {"durable": True, "durability": "fsync", "ttl_ms": 60_000, "cap_records": 2}
    assert (status, body["topic"], body["created"], body["config"]) == (200, "t", False, DEFAULTS | changed)
    assert isinstance(body["performance"]["server_total_ms"], float)
    state = rig.ok("GET", "/v0/topics/t")
    assert (state["config"], state["count"], state["earliest_seq"]) == (body["config"], 2, 4)
    assert rig.ok("PATCH", "/v0/topics/t", {})["config"] == body["config"]
    assert rig.ok("PATCH", "/v0/topics/t", {"durable": None})["config"] == body["config"] | {
        "durable": False,
        "durability": "disk",
    }


def test_a_patch_is_refused_as_a_put_is(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/q", {"type": "queue", "cap_records": 5})
    before = rig.ok("GET", "/v0/topics/q")["config"]
    refused: list[Any] = [
        *({"ttl_ms": -1}, {"ttl_ms": "5"}, {"cap_bytes": 1 << 64}, {"priority": 1 << 31}),
        *({"durability": "stone"}, {"dead_letter": "-x"}, [], 5),
    ]
    for wrong in refused:
        for topic in ("q", "absent"):
            assert rig.code("PATCH", f"/v0/topics/{topic}", wrong) == (400, "invalid_request"), wrong
    assert rig.code("PATCH", "/v0/topics/q", {"dead_letter": "q"}) == (400, "invalid_request")
    assert rig.code("PATCH", "/v0/topics/q", {"type": "log"}) == (409, "topic_exists_incompatible")
    assert rig.code("PATCH", "/v0/topics/q", {"type": None}) == (409, "topic_exists_incompatible")
    assert rig.code("PATCH", "/v0/topics/absent", {}) == (404, "topic_not_found")
    assert rig.code("PATCH", "/v0/topics/-a", {}) == (404, "topic_not_found")
    assert rig.code("GET", "/v0/topics/absent") == (404, "topic_not_found")
    assert rig.code("PATCH", "/v0/topics/q", raw=b"") == (415, "unsupported_media_type")
    json = {"content-type": "application/json"}
    assert rig.code("PATCH", "/v0/topics/q", raw=b"", headers=json) == (400, "invalid_request")
    assert rig.ok("GET", "/v0/topics/q")["config"] == before


def test_patches_that_race_are_all_in_force(rig: ServerRig) -> None:
    """proves: G-CONF-1"""
    rig.ok("PUT", "/v0/topics/t", {})
    fields = {"ttl_ms": 9, "cap_records": 8, "cap_bytes": 7, "priority": 6, "discard": "reject"}
    answers = [rig.send("PATCH", "/v0/topics/t", {field: value}) for field, value in fields.items()]
    rig.run()
    assert [reply.status for reply in map(settled, answers) if reply] == [200] * 5
    assert rig.ok("GET", "/v0/topics/t")["config"] == DEFAULTS | fields


def test_a_write_after_a_patch_obeys_it(rig: ServerRig) -> None:
    """The short way of single writes knows topics by their heads, and must not keep their config."""
    rig.ok("PUT", "/v0/topics/t", {"discard": "reject"})
    for n in range(3):
        rig.write("t", n)
    rig.ok("PATCH", "/v0/topics/t", {"cap_records": 3})
    assert rig.code("POST", "/v0/topics/t", {"records": [{"data": 1}]}) == (422, "topic_full")
    rig.ok("PATCH", "/v0/topics/t", {"cap_records": None})
    assert rig.ask("POST", "/v0/topics/t", {"records": [{"data": 1}]}).status == 200


def test_a_put_that_must_not_replace_leaves_a_topic_as_it_is(rig: ServerRig) -> None:
    """proves: G-CONF-2"""
    created = rig.ask("PUT", "/v0/topics/t?replace=false", {"cap_records": 5})
    assert (created.status, created.body["created"]) == (201, True)
    for config in ({"cap_records": 6}, {"type": "queue"}, {}):
        status, body = rig.ask("PUT", "/v0/topics/t?replace=false", config)
        assert (status, body["created"], body["config"]) == (200, False, DEFAULTS | {"cap_records": 5})
    assert rig.code("PUT", "/v0/topics/t?replace=false", {"ttl_ms": -1}) == (400, "invalid_request")
    answers = [rig.send("PUT", "/v0/topics/u?replace=false", {"ttl_ms": n + 1}) for n in range(5)]
    rig.run()
    replies = [decoded_reply(reply) for reply in map(settled, answers) if reply]
    assert [reply.status for reply in replies] == [201, 200, 200, 200, 200]
    assert {reply.body["config"]["ttl_ms"] for reply in replies} == {1}


def test_creates_of_one_name_that_race_create_once(rig: ServerRig) -> None:
    answers = [rig.send("PUT", "/v0/topics/t", {"ttl_ms": n}) for n in range(5)]
    rig.run()
    found = [settled(answer) for answer in answers]
    assert sorted(reply.status for reply in found if reply) == [200, 200, 200, 200, 201]


def test_names_that_cannot_be_are_400_to_create_and_absent_to_read(rig: ServerRig) -> None:
    for name in ("-a", "a%20b", "%C3%A9", "a%00", "x" * 256, "a%2Fb", "%FF"):
        path = f"/v0/topics/{name}"
        assert rig.code("PUT", path, {}) == (400, "invalid_request")
        assert rig.code("POST", path, {"records": [{"data": 1}]}) == (400, "invalid_request")
        assert rig.code("POST", path, {"records": [{"data": 1}], "create": False}) == (400, "invalid_request")
        assert rig.code("GET", path) == (404, "topic_not_found")
        assert rig.code("POST", f"{path}/diff") == (404, "topic_not_found")
        assert rig.code("POST", f"{path}/delete", {"before_seq": 1}) == (404, "topic_not_found")
        assert rig.ok("DELETE", path)["deleted"] is False


def test_a_bad_dead_letter_says_which(rig: ServerRig) -> None:
    for config in ({"dead_letter": "-x"}, {"dead_letter": "t", "type": "queue"}):
        status, body = rig.ask("PUT", "/v0/topics/t", config)
        assert (status, body["error"]["detail"]) == (400, {"dead_letter": config["dead_letter"]})
    assert rig.code("GET", "/v0/topics/t") == (404, "topic_not_found")


def test_the_state_follows_writes_and_reads(rig: ServerRig) -> None:
    """inv: 2, 3"""
    rig.ok("PUT", "/v0/topics/t", {})
    state = rig.ok("GET", "/v0/topics/t?touch=false")
    marks = ("head_seq", "earliest_seq", "next_seq", "count", "bytes", "last_write_ts", "last_read_ts")
    assert [state[mark] for mark in marks] == [0, 1, 1, 0, 0, None, None]
    assert (state["type"], state["effective_priority"], "queue" in state) == ("log", 0, False)
    rig.write("t", {"n": 1})
    written = rig.clock.wall_ms()
    rig.clock.advance(30_000)
    state = rig.ok("GET", "/v0/topics/t")
    assert [state[mark] for mark in marks] == [1, 1, 2, 1, 7, written, written + 30_000]
    assert state["effective_priority"] == 500
    rig.clock.advance(30_000)
    state = rig.ok("GET", "/v0/topics/t?touch=0")
    assert (state["last_read_ts"], state["effective_priority"]) == (written + 30_000, 250)
    assert rig.ok("GET", "/v0/topics/t?touch=perhaps")["last_read_ts"] == written + 60_000


def test_a_queue_shows_its_counters(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/q", {"type": "queue"})
    rig.write("q", 1, 2)
    state = rig.ok("GET", "/v0/topics/q")
    assert (state["type"], state["queue"]) == ("queue", {"ready": 2, "in_flight": 0, "dead_lettered": 0})


def test_writes_and_lists_do_not_touch_diffs_and_touching_lists_do(rig: ServerRig) -> None:
    def read_ts() -> Any:
        return rig.ok("GET", "/v0/topics/t?touch=false")["last_read_ts"]

    rig.write("t", 1)
    rig.ok("GET", "/v0/topics")
    assert read_ts() is None
    rig.ok("GET", "/v0/topics?touch=true&prefix=x")
    assert read_ts() is None
    rig.ok("GET", "/v0/topics?touch=1")
    assert read_ts() == rig.clock.wall_ms()
    rig.clock.advance(5)
    rig.diff("t")
    assert read_ts() == rig.clock.wall_ms()


def test_pages_of_the_list_are_sorted_disjoint_and_complete(rig: ServerRig) -> None:
    """inv: 41"""
    names = sorted(["b", "B", "a-1", "a.1", "a1", "a_1", "aa", "a:1", "0"], key=str.encode)
    for name in reversed(names):
        rig.ok("PUT", f"/v0/topics/{name}", {})
    for size in (1, 2, 4, 8, 9, 100):
        found, query = [], f"page_size={size}"
        while True:
            page = rig.ok("GET", f"/v0/topics?{query}")
            found.append([row["topic"] for row in page["topics"]])
            if "next_cursor" not in page:
                break
            query = f"page_size={size}&cursor={page['next_cursor']}"
        assert [name for part in found for name in part] == names
        assert all(len(part) == size for part in found[:-1])
        assert found[-1]
    assert [row["topic"] for row in rig.ok("GET", "/v0/topics?prefix=a")["topics"]] == names[2:8]
    for cursor in ("!!!", "%25", "a", "_w"):
        assert rig.code("GET", f"/v0/topics?cursor={cursor}") == (400, "invalid_request")


def test_a_row_of_the_list_says_what_the_state_says(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/t", {"cap_records": 2, "durability": "fsync", "ttl_ms": 100})
    rig.write("t", 1, 2, 33)
    row = rig.ok("GET", "/v0/topics")["topics"][0]
    assert row == {
        "topic": "t",
        "head_seq": 3,
        "earliest_seq": 2,
        "count": 2,
        "bytes": 3,
        "durable": True,
        "effective_priority": 0,
    }
    rig.clock.advance(101)
    row = rig.ok("GET", "/v0/topics")["topics"][0]
    assert (row["earliest_seq"], row["count"], row["bytes"]) == (4, 0, 0)


def test_a_topic_that_is_still_being_made_is_not_listed(rig: ServerRig) -> None:
    rig.runtime.hold("driftq-wal-0")
    creating = rig.send("PUT", "/v0/topics/t", {})
    rig.run()
    assert rig.ok("GET", "/v0/topics")["topics"] == []
    rig.runtime.release("driftq-wal-0")
    rig.run()
    reply = settled(creating)
    assert reply is not None
    assert decoded_reply(reply).status == 201
    assert len(rig.ok("GET", "/v0/topics")["topics"]) == 1


def test_a_deletion_is_idempotent_and_if_empty_minds_live_records_only(rig: ServerRig) -> None:
    rig.write("t", 1, 2, config={"ttl_ms": 50})
    status, body = rig.ask("DELETE", "/v0/topics/t?if_empty=true")
    assert (status, body["error"]["code"], body["error"]["detail"]) == (
        409,
        "topic_not_empty",
        {"topic": "t", "count": 2},
    )
    rig.clock.advance(51)
    body = rig.ok("DELETE", "/v0/topics/t?if_empty=1")
    assert (body["topic"], body["deleted"], body["routers_removed"]) == ("t", True, [])
    body = rig.ok("DELETE", "/v0/topics/t")
    assert (body["deleted"], body["routers_removed"]) == (False, [])
    assert rig.code("POST", "/v0/topics/t/diff") == (404, "topic_not_found")


def test_a_recreated_topic_is_new_and_an_old_cursor_is_told(rig: ServerRig) -> None:
    """inv: 43"""
    rig.write("t", 1, 2, 3)
    rig.ok("DELETE", "/v0/topics/t")
    rig.write("t", "new")
    page = rig.diff("t", 3)
    assert page["tombstone"] == {
        "$type": "tombstone",
        "$seq": 1,
        "gap_from": 1,
        "gap_to": 1,
        "reason": "recreated",
        "missed_estimate": 1,
        "earliest_seq": 1,
        "head_seq": 1,
    }
    assert [record["data"] for record in page["records"]] == ["new"]
    assert rig.ok("GET", "/v0/topics/t")["head_seq"] == 1


def test_topics_survive_a_crash_with_their_config(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/t", {"ttl_ms": 7, "priority": -3})
    rig.crash()
    assert rig.ok("GET", "/v0/topics/t?touch=false")["config"] == DEFAULTS | {"ttl_ms": 7, "priority": -3}


def test_topics_have_a_cap_that_is_exact_under_races() -> None:
    """inv: 75"""
    rig = ServerRig(limits={"topics_max": 3})
    answers = [rig.send("PUT", f"/v0/topics/p{n}", {}) for n in range(5)]
    answers += [rig.send("POST", f"/v0/topics/w{n}", {"records": [{"data": 1}]}) for n in range(5)]
    rig.run()
    replies = [reply for answer in answers if (reply := settled(answer)) is not None]
    assert sorted(reply.status for reply in replies) == [201] * 3 + [429] * 7
    refused = next(reply for reply in replies if reply.status == 429)
    assert dict(refused.headers)[b"retry-after"] == b"1"
    assert decoded_reply(refused).body["error"]["detail"] == {"limit": "max_topics", "max": 3}
    assert rig.ask("PUT", "/v0/topics/p0", {"ttl_ms": 1}).status == 200
    rig.ok("DELETE", "/v0/topics/p1")
    assert rig.ask("PUT", "/v0/topics/other", {}).status == 201


def test_a_refused_put_changes_nothing(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/t", {"cap_records": 5})
    bodies: list[Any] = [
        {"cap_records": 1, "discard": "no"},
        {"ttl_ms": -1},
        {"ttl_ms": 1 << 64},
        {"priority": 1 << 31},
    ]
    for bad in [*bodies, [], {"type": None}, {"durable": None}, {"ttl_ms": None}, {"ttl_ms": 1.0}]:
        assert rig.code("PUT", "/v0/topics/t", bad) == (400, "invalid_request")
    assert rig.ok("GET", "/v0/topics/t")["config"] == DEFAULTS | {"cap_records": 5}


def test_the_numbers_of_a_topic_hold_behind_every_step(rig: ServerRig) -> None:
    """inv: 2, 3, 4, 5"""
    path = "/v0/topics/q"
    tagged = {"records": [{"data": number, "tag": f"t{number % 3}"} for number in range(12)]}
    steps: list[tuple[int, str, str, Any]] = [
        (12, "POST", path, tagged),
        (0, "POST", f"{path}/delete", {"before_seq": 3}),
        (0, "POST", f"{path}/delete", {"match": "t1"}),
        (0, "POST", f"{path}/claim", {"node": "w", "max": 2}),
        (0, "POST", f"{path}/ack", {"node": "w", "seqs": [3, 4, 6]}),
        (0, "PUT", path, {"type": "queue", "cap_records": 3}),
        (5, "POST", path, {"records": [{"data": "later"}] * 5}),
        (0, "PUT", path, {"type": "queue", "ttl_ms": 150}),
        (0, "POST", f"{path}/diff", {}),
        (1, "POST", path, {"records": [{"data": "last"}]}),
        (0, "POST", f"{path}/delete", {"before_seq": 1 << 40}),
    ]
    rig.ok("PUT", path, {"type": "queue"})
    head, earliest, seen_empty = 0, 1, 0
    for written, method, target, body in steps:
        rig.ok(method, target, body)
        rig.clock.advance(60)
        state = rig.ok("GET", path)
        head += written
        assert (state["head_seq"], state["next_seq"]) == (head, head + 1), target
        assert 1 <= earliest <= state["earliest_seq"] <= head + 1, target
        empty = {state["earliest_seq"] == head + 1, state["count"] == 0, state["bytes"] == 0}
        assert len(empty) == 1, target
        seen_empty += empty.pop()
        earliest = state["earliest_seq"]
    assert seen_empty == 2, "expired, and deleted"


def test_nothing_but_a_put_and_a_write_makes_a_topic(rig: ServerRig) -> None:
    """inv: 21"""
    path = "/v0/topics/absent"
    asked: list[tuple[str, str, Any]] = [
        ("GET", path, None),
        ("POST", f"{path}/diff", {"from_seq": 5, "wait_ms": 1000}),
        ("POST", f"{path}/delete", {"match": "x"}),
        ("POST", "/v0/watch", {"topics": {"absent": {}}}),
        ("POST", f"{path}/claim", {"node": "w"}),
        ("POST", f"{path}/ack", {"node": "w", "seqs": [1]}),
        ("GET", f"{path}/work?node=w", None),
    ]
    for method, target, body in asked:
        found = rig.code(method, target) if body is None else rig.code(method, target, body)
        assert found == (404, "topic_not_found"), target
    assert rig.ok("GET", "/v0/topics")["topics"] == []
