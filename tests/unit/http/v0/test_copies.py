"""What a reader of a routed topic may count on, over the wire (http-v0 §11.3 to §11.5)."""

from itertools import pairwise
from typing import Any

import pytest

from driftq.features.router.destination import Inflow
from driftq.features.router.forwarding import Forwarder, StepResult
from driftq.http.answer import Answer
from driftq.system.runtime import Pending
from driftq.testing import CrashMode, ServerRig, decoded_reply, settled

HOPS_MAX = 8


@pytest.fixture
def rig() -> ServerRig:
    rig = ServerRig()
    for name in ("src", "dst"):
        rig.ok("PUT", f"/v0/topics/{name}", {"durability": "fsync"})
    return rig


def route(rig: ServerRig, name: str = "r", source: str = "src", dest: str = "dst", **fields: Any) -> Any:
    return rig.ok("PUT", f"/v0/routers/{name}", {"source": source, "dest": dest, **fields})


def copies(rig: ServerRig, topic: str = "dst", from_seq: int = 0) -> list[tuple[int, Any]]:
    """Seq and data of what the next page shows, without a tombstone."""
    page = rig.diff(topic, from_seq)
    assert page["tombstone"] is None
    return [(record["$seq"], record["data"]) for record in page["records"]]


def forwarded(rig: ServerRig) -> int:
    return int(rig.ok("GET", "/v0/routers/r")["forwarded_total"])


def blocked(rig: ServerRig, **source: Any) -> None:
    """A router whose dest is full of one copy and takes no other."""
    rig.ok("PUT", "/v0/topics/src", {"durability": "fsync", **source})
    rig.ok("PUT", "/v0/topics/dst", {"durability": "fsync", "cap_records": 1, "discard": "reject"})
    route(rig)
    rig.write("src", "first")
    assert copies(rig) == [(1, "first")]


def right_behind_a_write(rig: ServerRig, data: Any, method: str, path: str, value: Any = None) -> Any:
    """The answer to a request that is handed in with the ack of a write to the source: no turn has run between them."""
    answers: list[Answer] = []

    def acked(_: object) -> None:
        answers.append(rig.send(method, path) if value is None else rig.send(method, path, value))

    written = rig.send("POST", "/v0/topics/src", {"records": [{"data": data}]})
    assert isinstance(written, Pending)
    written.then(acked)
    rig.run()
    reply = settled(answers[0])
    assert reply is not None
    return decoded_reply(reply).body


def test_the_first_look_behind_a_write_to_the_source_sees_the_copy(rig: ServerRig) -> None:
    """inv: 44"""
    rig.ok("PUT", "/v0/topics/q", {"type": "queue"})
    route(rig)
    route(rig, "r2", dest="q")
    page = right_behind_a_write(rig, 1, "POST", "/v0/topics/dst/diff", {})
    assert [(record["$seq"], record["data"]) for record in page["records"]] == [(1, 1)]
    assert right_behind_a_write(rig, 2, "GET", "/v0/topics/dst")["head_seq"] == 2
    claimed = right_behind_a_write(rig, 3, "POST", "/v0/topics/q/claim", {"node": "w", "max": 9})["claimed"]
    assert [job["data"] for job in claimed] == [1, 2, 3]
    assert right_behind_a_write(rig, 4, "GET", "/v0/routers/r")["forwarded_total"] == 4


def test_a_write_fanned_out_to_five_is_one_frame_of_the_log(rig: ServerRig) -> None:
    """inv: 45"""
    for number in range(5):
        rig.ok("PUT", f"/v0/topics/d{number}", {"durability": "fsync"})
        route(rig, f"r{number}", dest=f"d{number}")
    log = rig.server.engine.shards.all[0].counters
    before = log.frames
    rig.write("src", "v", "w")
    for number in range(5):
        assert copies(rig, f"d{number}") == [(1, "v"), (2, "w")]
    assert log.frames == before + 1


def test_copies_keep_order_and_content_and_begin_behind_the_head(rig: ServerRig) -> None:
    """inv: 46"""
    rig.write("dst", "own", "own")
    route(rig)
    records = [
        {"data": {"n": number}, "tag": f"t{number}", "node": f"n{number}", "meta": {"k": str(number)}}
        for number in range(20)
    ]
    for part in (records[:1], records[1:15], records[15:]):
        rig.ok("POST", "/v0/topics/src", {"records": part})
    for _ in range(2):
        found = rig.diff("dst", 2, include_tags=True)["records"]
        assert [record["$seq"] for record in found] == list(range(3, 23))
        kept = [{"data": r["data"], "tag": r["$tag"], "node": r["$node"], "meta": r["meta"]} for r in found]
        assert kept == records
        rig.crash()


def test_a_router_forwards_what_comes_behind_it_also_after_a_restart(rig: ServerRig) -> None:
    """inv: 47"""
    rig.write("src", "before", "before")
    route(rig)
    assert copies(rig) == []
    rig.write("src", "behind")
    for _ in range(2):
        rig.crash(CrashMode.DROP)
        assert rig.disk.names("/data/meta") == [], "there is no checkpoint to tell where it began"
        assert copies(rig) == [(1, "behind")]


def test_a_full_dest_holds_its_router_up_and_nothing_is_missing(rig: ServerRig) -> None:
    """inv: 48; row: F-ROUTER-1"""
    blocked(rig)
    rig.write("src", "second", "third")
    rig.advance(500)
    assert (forwarded(rig), copies(rig)) == (1, [(1, "first")])
    rig.write("src", "fourth")
    arrived = []
    for cursor in range(1, 4):
        rig.ok("POST", "/v0/topics/dst/delete", {"before_seq": cursor + 1})
        arrived += copies(rig, from_seq=cursor)
    assert arrived == [(2, "second"), (3, "third"), (4, "fourth")]
    assert forwarded(rig) == 4


def tries(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """When the router is tried from now on, in milliseconds."""
    began, found = rig.clock.wall_ms(), list[int]()
    step = Forwarder._step

    def counted(forwarder: Forwarder, inflow: Inflow) -> StepResult:
        found.append(rig.clock.wall_ms() - began)
        return step(forwarder, inflow)

    monkeypatch.setattr(Forwarder, "_step", counted)
    return found


def test_a_blocked_router_is_tried_less_and_less_often(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """row: F-ROUTER-1"""
    blocked(rig)
    found = tries(rig, monkeypatch)
    rig.write("src", "second")
    rig.advance(30_000)
    assert [after - before for before, after in pairwise(found)][:6] == [50, 100, 200, 400, 800, 1600]
    assert {after - before for before, after in pairwise(found[8:])} == {5000}
    rig.write("src", "third")
    before = len(found)
    rig.advance(4000)
    assert len(found) - before <= 1, "a write to its source makes no room"


@pytest.mark.parametrize("room", ["delete", "cap", "patch"])
def test_a_blocked_router_goes_on_at_once_when_its_dest_gets_room(rig: ServerRig, room: str) -> None:
    """row: F-ROUTER-1"""
    blocked(rig)
    rig.write("src", "second")
    rig.advance(60_000)
    if room == "delete":
        rig.ok("POST", "/v0/topics/dst/delete", {"before_seq": 2})
    elif room == "cap":
        rig.ok("PUT", "/v0/topics/dst", {"durability": "fsync", "cap_records": 2, "discard": "reject"})
    else:
        rig.ok("PATCH", "/v0/topics/dst", {"cap_records": 2})
    rig.run()
    assert rig.server.engine.catalog.get("dst").head == 2, "without a reader, and without waiting"


def test_a_blocked_router_goes_on_when_the_ttl_of_its_dest_makes_room(rig: ServerRig) -> None:
    blocked(rig)
    rig.ok("PATCH", "/v0/topics/dst", {"ttl_ms": 42_000})
    rig.write("src", "second")
    rig.advance(42_100)
    assert rig.server.engine.catalog.get("dst").head == 2


def test_a_router_that_went_on_is_tried_soon_again(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked(rig)
    rig.write("src", "second")
    rig.advance(60_000)
    rig.ok("POST", "/v0/topics/dst/delete", {"before_seq": 2})
    found = tries(rig, monkeypatch)
    rig.write("src", "third")
    rig.advance(200)
    assert [after - before for before, after in pairwise(found)] == [50, 100]


def test_a_second_source_for_a_dest_is_refused_and_leaves_nothing_behind(rig: ServerRig) -> None:
    """inv: 49"""
    route(rig)
    status, body = rig.ask("PUT", "/v0/routers/other", {"source": "new", "dest": "dst"})
    assert (status, body["error"]["detail"]["reason"]) == (409, "router_dest_fan_in")
    assert [row["topic"] for row in rig.ok("GET", "/v0/topics")["topics"]] == ["dst", "src"]
    assert [row["router"] for row in rig.ok("GET", "/v0/routers")["routers"]] == ["r"]


def test_a_cycle_is_refused_by_its_path_and_where_allowed_it_ends(rig: ServerRig) -> None:
    """inv: 50"""
    route(rig, "ab", "a", "b")
    route(rig, "bc", "b", "c")
    status, body = rig.ask("PUT", "/v0/routers/ca", {"source": "c", "dest": "a"})
    assert (status, body["error"]["code"]) == (409, "router_cycle")
    assert body["error"]["detail"]["cycle"] == ["c", "a", "b", "c"]
    route(rig, "ca", "c", "a", allow_cycle=True)
    rig.write("a", "round and round")
    rig.advance(5000)
    heads = [rig.ok("GET", f"/v0/topics/{topic}")["head_seq"] for topic in ("a", "b", "c")]
    assert sum(heads) == 1 + HOPS_MAX


def test_an_exactly_once_router_that_starts_over_adds_nothing(rig: ServerRig) -> None:
    """inv: 51"""
    route(rig, guarantee="exactly_once")
    rig.write("src", "a", "b", "c")
    before = copies(rig)
    assert [data for _, data in before] == ["a", "b", "c"]
    rig.server.routers.get("r").cursor = 0
    rig.write("src", "d")
    assert copies(rig) == [*before, (4, "d")]
    assert rig.server.routers.get("r").cursor == 4


def test_what_the_source_lost_before_it_was_forwarded_is_a_gap_in_dest(rig: ServerRig) -> None:
    """inv: 52"""
    blocked(rig, ttl_ms=1000)
    rig.write("src", "lost", "lost")
    rig.advance(1500)
    rig.ok("PUT", "/v0/topics/dst", {"durability": "fsync"})
    rig.ok("POST", "/v0/topics/dst/delete", {"before_seq": 2})
    rig.write("src", "live")
    for _ in range(2):
        page = rig.diff("dst")
        assert (page["tombstone"]["reason"], page["tombstone"]["gap_to"]) == ("source_trim", 3)
        assert [(record["$seq"], record["data"]) for record in page["records"]] == [(4, "live")]
        assert page["earliest_seq"] == 4
        rig.crash()


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_copy_that_was_deleted_or_acked_stays_so(rig: ServerRig, *, checkpointed: bool) -> None:
    """inv: 53"""
    rig.ok("PUT", "/v0/topics/jobs", {"type": "queue", "durability": "fsync"})
    route(rig)
    route(rig, "r2", dest="jobs")
    records = [{"data": number, "tag": f"t{number}"} for number in range(1, 6)]
    rig.ok("POST", "/v0/topics/src", {"records": records})
    rig.ok("POST", "/v0/topics/dst/delete", {"match": "t2"})
    rig.ok("POST", "/v0/topics/jobs/claim", {"node": "w", "max": 3})
    assert rig.ok("POST", "/v0/topics/jobs/ack", {"node": "w", "seqs": [1, 3]})["acked"] == 2
    if checkpointed:
        rig.server.engine.upkeep.checkpoint()
        rig.run()
    rig.write("src", 6)
    for mode in CrashMode:
        rig.crash(mode, 1)
        assert copies(rig) == [(seq, seq) for seq in (1, 3, 4, 5, 6)]
        assert copies(rig, "jobs") == [(seq, seq) for seq in (2, 4, 5, 6)]
        assert rig.ok("GET", "/v0/topics/jobs")["queue"]["ready"] == 4


def test_a_deleted_topic_takes_its_routers_along_and_names_them(rig: ServerRig) -> None:
    """inv: 42"""
    route(rig, "z", "src", "mid")
    route(rig, "b", "mid", "dst")
    route(rig, "a", "mid", "other")
    route(rig, "stays", "x", "y")
    assert rig.ok("DELETE", "/v0/topics/mid")["routers_removed"] == ["a", "b", "z"]
    for _ in range(2):
        assert [row["router"] for row in rig.ok("GET", "/v0/routers")["routers"]] == ["stays"]
        rig.crash()


def test_a_key_with_prefixes_makes_no_router_out_of_them() -> None:
    """inv: 73"""
    rig = ServerRig(keys="root,mine::a.")
    for source, dest in (("a.src", "b.dst"), ("b.src", "a.dst")):
        assert rig.code("PUT", "/v0/routers/a.r", {"source": source, "dest": dest}, key="mine") == (403, "forbidden")
    assert rig.ok("GET", "/v0/topics", key="root")["topics"] == []
    rig.ok("PUT", "/v0/routers/a.r", {"source": "a.src", "dest": "a.dst"}, key="mine")


def picture(rig: ServerRig) -> dict[str, Any]:
    """All that a caller can see of topics, routers and leases, but for the time it took and what times move."""
    shown: dict[str, Any] = {}
    for row in rig.ok("GET", "/v0/topics")["topics"]:
        name = row["topic"]
        state = rig.ok("GET", f"/v0/topics/{name}?touch=false")
        page = rig.diff(name, include_tags=True, limit=1000)
        records = [{key: record[key] for key in record if key != "$ts"} for record in page["records"]]
        kept = ("head_seq", "earliest_seq", "next_seq", "count", "bytes", "config", "queue")
        shown[name] = {key: state.get(key) for key in kept}, records, page["tombstone"]
    for row in rig.ok("GET", "/v0/routers")["routers"]:
        rig.ok("GET", f"/v0/routers/{row['router']}")
    shown["routers"] = rig.ok("GET", "/v0/routers")["routers"]
    return shown


def busy(rig: ServerRig) -> list[tuple[int, str]]:
    """Copies, evicted and deleted ones, and jobs in all states, logged; who holds what under which token."""
    rig.ok("PUT", "/v0/topics/dst", {"durability": "fsync", "cap_records": 5})
    rig.ok("PUT", "/v0/topics/jobs", {"type": "queue", "durability": "fsync", "leases_durable": True})
    route(rig)
    route(rig, "r2", dest="jobs", guarantee="exactly_once")
    rig.write("src", *range(9))
    rig.ok("POST", "/v0/topics/src/delete", {"before_seq": 3})
    jobs = rig.ok("POST", "/v0/topics/jobs/claim", {"node": "w", "max": 5})["claimed"]
    rig.ok("POST", "/v0/topics/jobs/ack", {"node": "w", "seqs": [2]})
    rig.ok("POST", "/v0/topics/jobs/nack", {"node": "w", "seqs": [4], "delay_ms": 3_600_000})
    return [(job["$seq"], job["lease_id"]) for job in jobs if job["$seq"] not in (2, 4)]


def settles(rig: ServerRig, held: list[tuple[int, str]]) -> bool:
    """Do the tokens still count?"""
    body = {"node": "w", "seqs": [seq for seq, _ in held], "lease_ids": [token for _, token in held]}
    return bool(held) and bool(rig.ok("POST", "/v0/topics/jobs/ack", body)["acked"] == len(held))


def test_a_start_with_any_number_of_logs_finds_the_same(rig: ServerRig) -> None:
    """inv: 83"""
    held = busy(rig)
    before = picture(rig)
    assert before["jobs"][0]["queue"] == {"ready": 4, "in_flight": 3, "dead_lettered": 0}
    for shards in (1, 4, 7, 1):
        rig.crash(wal_shards=shards)
        assert picture(rig) == before, shards
        rig.kill()
        assert picture(rig) == before, shards
    rig.restart(wal_shards=2)
    assert picture(rig) == before
    assert settles(rig, held)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_routers_and_leases_are_the_same_with_and_without_checkpoints(*, checkpointed: bool) -> None:
    """inv: 82"""
    rig = ServerRig(wal_file_bytes=1 << 20)
    for name in ("src", "dst"):
        rig.ok("PUT", f"/v0/topics/{name}", {"durability": "fsync"})
    held = busy(rig)
    rig.server.engine.upkeep.checkpoint()
    rig.run()
    rig.write("src", "behind it")
    rig.ok("POST", "/v0/topics/jobs/nack", {"node": "w", "seqs": [held.pop()[0]]})
    before = picture(rig)
    assert rig.disk.names("/data/meta")
    if not checkpointed:
        for name in rig.disk.names("/data/meta"):
            rig.disk.unlink(f"/data/meta/{name}")
    rig.kill()
    assert (rig.server.engine.recovered.snapshot > 0) == checkpointed
    assert picture(rig) == before
    assert settles(rig, held)


def test_a_graceful_stop_copies_what_is_due_first() -> None:
    """http-v0 §17; after a restart nothing could be copied from a source that is `ephemeral`."""
    rig = ServerRig()
    for topic in ("b", "c"):
        rig.ok("PUT", f"/v0/topics/{topic}", {"durability": "fsync"})
    rig.ok("PUT", "/v0/topics/a", {"durability": "ephemeral"})
    rig.ok("PUT", "/v0/routers/ab", {"source": "a", "dest": "b"})
    rig.ok("PUT", "/v0/routers/bc", {"source": "b", "dest": "c"})
    records = [{"data": number} for number in range(10_000)]
    written = [rig.send("POST", "/v0/topics/a", {"records": records}) for _ in range(4)]
    while not all(settled(answer) for answer in written):
        rig.runtime.turn()
    assert rig.server.engine.topic("c").head < 40_000
    rig.restart()
    assert [rig.ok("GET", f"/v0/topics/{topic}")["count"] for topic in ("b", "c")] == [40_000, 40_000]
    assert rig.ok("GET", "/v0/routers/bc")["forwarded_total"] == 40_000


def test_a_stop_does_not_wait_for_a_dest_that_takes_nothing() -> None:
    rig = ServerRig()
    rig.ok("PUT", "/v0/topics/b", {"cap_records": 1, "discard": "reject"})
    rig.ok("PUT", "/v0/routers/ab", {"source": "a", "dest": "b"})
    rig.write("a", 1, 2, 3)
    began = rig.clock.wall_ms()
    rig.restart()
    assert rig.clock.wall_ms() - began <= 1000
    rig.ok("PUT", "/v0/topics/b", {})
    assert rig.ok("GET", "/v0/topics/b")["count"] == 3


def test_a_stop_waits_only_so_long_for_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = ServerRig()
    rig.ok("PUT", "/v0/topics/a", {})
    rig.ok("PUT", "/v0/topics/b", {})
    rig.ok("PUT", "/v0/routers/ab", {"source": "a", "dest": "b"})
    monkeypatch.setattr(rig.server.routers, "bring", lambda _: Pending())
    closing = rig.server.close()
    rig.advance(1500)
    assert not closing.settled
    assert rig.code("GET", "/v0/topics/a") == (503, "shutting_down")
    rig.advance(1500)
    assert closing.result()
