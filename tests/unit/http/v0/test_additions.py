"""What we add to the contract, over the wire (http-v0 §22)."""

from typing import Any

import pyarrow as pa
import pytest

from driftq.http.reply import Reply
from driftq.testing import FaultyDisk, ServerRig, decoded_reply, settled
from tests.unit.http.v0.events import Watcher

TOPIC = "/v0/topics/t"
ARROW = "application/vnd.apache.arrow.stream"


@pytest.fixture
def rig() -> ServerRig:
    rig = ServerRig()
    rig.ok("PUT", TOPIC, {})
    return rig


def _arrow(columns: dict[str, Any]) -> bytes:
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _stage(rig: ServerRig, *datas: Any, **address: Any) -> Any:
    query = "&".join(f"{k}={v}" for k, v in {"writer": "w", "batch": 1, "part": 0, "attempt": 0, **address}.items())
    return rig.ok("POST", f"{TOPIC}/stage?{query}", {"records": [{"data": data} for data in datas]})


# synced_seq


def test_synced_seq_follows_the_syncs_of_a_disk_topic(rig: ServerRig) -> None:
    assert rig.write("t", 1, 2)["synced_seq"] == 2, "the first write waits for its reservation"
    assert rig.write("t", 3)["synced_seq"] == 2
    rig.advance(20)
    assert rig.write("t", 4)["synced_seq"] == 3


def test_a_state_waits_for_the_sync_of_what_it_shows(rig: ServerRig) -> None:
    rig.write("t", 1)
    assert rig.write("t", 2)["synced_seq"] == 1
    state = rig.ok("GET", TOPIC)
    assert state["synced_seq"] == 2
    assert rig.ok("GET", TOPIC) | {"performance": 0} == state | {"performance": 0}
    assert not rig.server.engine.synced.names(), "nobody is left behind"


def test_an_ephemeral_topic_has_none_and_nobody_waits_for_it(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/e", {"durability": "ephemeral"})
    assert rig.write("e", 1)["synced_seq"] is None
    assert rig.ok("GET", "/v0/topics/e?wait_synced=9&wait_ms=1000")["synced_seq"] is None


def test_a_caller_waits_until_its_seq_is_synced(rig: ServerRig) -> None:
    waiting = rig.send("GET", f"{TOPIC}?wait_synced=2&wait_ms=30000")
    rig.write("t", 1)
    rig.advance(20)
    assert settled(waiting) is None
    rig.write("t", 2)
    rig.advance(20)
    reply = settled(waiting)
    assert reply is not None
    assert decoded_reply(reply).body["synced_seq"] == 2


def test_a_caller_waits_no_longer_than_it_said(rig: ServerRig) -> None:
    waiting = rig.send("GET", f"{TOPIC}?wait_synced=5&wait_ms=800")
    rig.advance(799)
    assert settled(waiting) is None
    rig.advance(1)
    reply = settled(waiting)
    assert isinstance(reply, Reply)
    assert decoded_reply(reply).body["synced_seq"] == 0
    assert not rig.server.engine.synced.names(), "nobody is left behind"


def test_a_state_does_not_wait_for_a_log_that_has_stopped(rig: ServerRig) -> None:
    engine = rig.server.engine
    rig.write("t", 1)
    rig.write("t", 2)
    engine.change_log.shard_of(engine.topic("t")).stop("a sync failed")
    reply = settled(rig.send("GET", TOPIC))
    assert reply is not None
    assert decoded_reply(reply).body["synced_seq"] == 1


def test_a_topic_that_is_deleted_ends_the_wait(rig: ServerRig) -> None:
    waiting = rig.send("GET", f"{TOPIC}?wait_synced=5&wait_ms=30000")
    rig.ok("DELETE", TOPIC)
    reply = settled(waiting)
    assert reply is not None
    assert decoded_reply(reply).status == 404


def test_a_failed_write_holds_readers_of_what_is_synced_until_a_checkpoint_and_no_longer() -> None:
    """A router into an `fsync` topic, a strong watch, `wait_synced` and ready.

    proves: G-IO-11; row: F-WRITE-1
    """
    fails = [False]
    rig = ServerRig(
        wrap=lambda disk: FaultyDisk(
            disk, forever=True, when=lambda operation, path: fails[0] and operation == "pwritev" and "/wal/" in path
        )
    )
    rig.ok("PUT", TOPIC, {"durability": "disk"})
    rig.ok("PUT", "/v0/topics/copies", {"durability": "fsync"})
    rig.ok("PUT", "/v0/routers/r", {"source": "t", "dest": "copies"})
    watcher = Watcher(rig, ["t"], consistency="strong")
    rig.write("t", 1)
    rig.advance(20)
    watcher.events()
    fails[0] = True
    rig.write("t", 2)
    fails[0] = False
    rig.write("t", 3)
    rig.advance(100)
    waiting = rig.send("GET", f"{TOPIC}?wait_synced=3&wait_ms=30000")
    assert settled(waiting) is None
    assert [record["data"] for record in rig.diff("copies")["records"]] == [1]
    assert watcher.events() == []
    assert [record["data"] for record in rig.diff("t")["records"]] == [1, 2, 3], "nothing is missing yet"
    holes = rig.ok("GET", "/v0/ready")["holes"]
    assert (holes["crash"], holes["at_most"]) == (1, 1)
    metrics = rig.reply("GET", "/metrics").whole.decode()
    assert '\ndriftq_holes{reason="crash"} 1\n' in metrics
    assert "\ndriftq_holes_at_most 1\n" in metrics
    rig.server.engine.upkeep.checkpoint()
    rig.advance(100)
    reply = settled(waiting)
    assert reply is not None
    assert decoded_reply(reply).body["synced_seq"] == 3
    assert [record["data"] for record in rig.diff("copies")["records"]] == [1, 2, 3]
    assert [data for datas in watcher.short() if isinstance(datas, list) for data in datas] == [2, 3]
    assert "holes" not in rig.ok("GET", "/v0/ready")
    rig.crash()
    assert [record["data"] for record in rig.diff("t")["records"]] == [1, 2, 3]


# from_ts


def test_a_diff_from_a_time_begins_at_its_first_record(rig: ServerRig) -> None:
    for number in range(5):
        rig.write("t", number)
        rig.advance(10)
    times = [record["$ts"] for record in rig.diff("t")["records"]]
    page = rig.ok("POST", f"{TOPIC}/diff", {"from_ts": times[2]})
    assert [record["data"] for record in page["records"]] == [2, 3, 4]
    page = rig.ok("POST", f"{TOPIC}/diff", {"from_ts": times[-1] + 1})
    assert (page["records"], page["next_from_seq"], page["caught_up"]) == ([], 5, True)
    assert rig.code("POST", f"{TOPIC}/diff", {"from_ts": 1, "from_seq": 0}) == (400, "invalid_request")
    assert rig.code("POST", f"{TOPIC}/diff", {"from_ts": 1 << 64}) == (400, "invalid_request")


# Many topics in one request


def _streams(reply: Any) -> list[tuple[str, list[int]]]:
    source = pa.BufferReader(b"".join(reply.more))
    found = []
    while source.tell() < source.size():
        with pa.ipc.open_stream(source) as stream:
            topic = stream.schema.metadata[b"topic"].decode()
            found.append((topic, [seq for batch in stream for seq in batch.column(0).to_pylist()]))
    return found


def test_one_request_reads_many_topics_as_streams_one_after_another(rig: ServerRig) -> None:
    for name in ("a", "b"):
        rig.ok("PUT", f"/v0/topics/{name}", {})
        rig.write(name, *range(5))
    reads = [{"topic": "b", "from_seq": 2}, {"topic": "t"}, {"topic": "a", "limit": 2}]
    accept = {"accept": ARROW}
    reply = rig.send("POST", "/v0/reads", {"reads": reads}, headers=accept)
    assert _streams(reply) == [("b", [3, 4, 5]), ("t", []), ("a", [1, 2])]
    short = rig.send("POST", "/v0/reads", {"reads": reads, "max_batch_bytes": 1}, headers=accept)
    assert _streams(short) == [("b", [3])]
    assert rig.code("POST", "/v0/reads", {"reads": reads}) == (400, "invalid_request")
    absent = {"reads": [*reads, {"topic": "none"}]}
    assert rig.code("POST", "/v0/reads", absent, headers=accept) == (404, "topic_not_found")
    assert rig.code("POST", "/v0/reads", {"reads": reads * 40}, headers=accept) == (400, "invalid_request")
    assert rig.code("POST", "/v0/reads", {"reads": []}, headers=accept) == (400, "invalid_request")


# Segments


def test_the_manifest_names_sealed_segments_and_their_roots(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/s", {"durability": "fsync"})
    for number in range(40):
        rig.write("s", number)
    rig.advance(50)
    found = rig.ok("GET", "/v0/topics/s/segments")
    assert (found["hot_root"], found["cold_root"], found["synced_seq"]) == ("/data", None, 40)
    assert [(row["first_seq"], row["last_seq"], row["count"], row["tier"]) for row in found["segments"]] == [
        (1, 16, 16, "hot"),
        (17, 32, 16, "hot"),
    ]
    for row in found["segments"]:
        assert rig.disk.exists(f"/data/{row['file']}")
    assert rig.disk.open("/data/.driftq.id").pread(99, 0).decode().strip() == found["server_id"]
    rig.restart()
    assert rig.ok("GET", "/v0/topics/s/segments")["server_id"] == found["server_id"]


def test_one_request_answers_the_manifests_of_many_topics(rig: ServerRig) -> None:
    for name in ("a-1", "a-2", "b"):
        rig.ok("PUT", f"/v0/topics/{name}", {"durability": "fsync"})
    for number in range(20):
        rig.write("a-1", number)
    rig.write("b", 1)
    rig.advance(50)
    found = rig.ok("POST", "/v0/segments", {"topics": ["b", "a-1", "none"]})
    one = rig.ok("GET", "/v0/topics/a-1/segments")
    assert [row["topic"] for row in found["topics"]] == ["a-1", "b"]
    assert (found["server_id"], found["hot_root"], found["cold_root"]) == (one["server_id"], "/data", None)
    row = found["topics"][0]
    assert (row["epoch"], row["head_seq"], row["earliest_seq"], row["evict_floor"]) == (one["epoch"], 20, 1, 1)
    assert (row["segments"], row["holes"], row["count"]) == (one["segments"], [], 20)
    state = rig.ok("GET", "/v0/topics/a-1")
    assert (row["bytes"], row["last_ts"]) == (state["bytes"], state["last_write_ts"])
    page = rig.ok("POST", "/v0/segments", {"prefix": "a-", "page_size": 1})
    assert [row["topic"] for row in page["topics"]] == ["a-1"]
    rest = rig.ok("POST", "/v0/segments", {"prefix": "a-", "cursor": page["next_cursor"]})
    assert [row["topic"] for row in rest["topics"]] == ["a-2"]
    assert "next_cursor" not in rest
    assert (rest["topics"][0]["head_seq"], rest["topics"][0]["last_ts"]) == (0, None)
    everything = rig.ok("POST", "/v0/segments", {})
    assert [row["topic"] for row in everything["topics"]] == ["a-1", "a-2", "b", "t"]


def test_manifests_say_where_a_number_of_live_records_ends(rig: ServerRig) -> None:
    for tag, count in (("x", 100), ("y", 10)):
        rig.ok("POST", TOPIC, {"records": [{"data": n, "tag": tag} for n in range(count)]})
    rig.ok("POST", f"{TOPIC}/delete", {"match": "x"})
    rig.write("t", *range(5))

    def reach(seq: int, records: int) -> int:
        asked = {"topics": ["t"], "after": {"t": {"seq": seq, "records": records}}}
        return int(rig.ok("POST", "/v0/segments", asked)["topics"][0]["reach_seq"])

    assert [reach(0, 1), reach(0, 10), reach(0, 11), reach(105, 3)] == [101, 110, 111, 108]
    assert [reach(0, 15), reach(0, 16), reach(115, 1), reach(900, 1)] == [115, 115, 115, 115]
    assert "reach_seq" not in rig.ok("POST", "/v0/segments", {"topics": ["t"]})["topics"][0]


@pytest.mark.parametrize(
    "body", [{"topics": ["t"] * 1001}, {"topics": "t"}, {"after": {"t": {"seq": -1, "records": 1}}}, {"cursor": "%"}]
)
def test_a_request_for_manifests_that_means_nothing_is_refused(rig: ServerRig, body: dict[str, Any]) -> None:
    assert rig.code("POST", "/v0/segments", body) == (400, "invalid_request")


def test_the_cold_root_is_marked_before_it_is_named() -> None:
    rig = ServerRig(cold_dir="/cold")
    rig.ok("PUT", TOPIC, {})
    assert not rig.disk.exists("/cold/.driftq.id"), "it is written to for whoever wants to know"
    for _ in range(2):
        found = rig.ok("GET", f"{TOPIC}/segments")
        assert found["cold_root"] == "/cold"
        assert rig.disk.open("/cold/.driftq.id").pread(99, 0).decode().strip() == found["server_id"]


def test_a_cold_root_that_cannot_be_marked_is_an_error_and_tried_again() -> None:
    armed = [True]

    def strikes(operation: str, path: str) -> bool:
        return bool(armed) and operation == "create" and path.startswith("/cold/.driftq")

    rig = ServerRig(cold_dir="/cold", wrap=lambda disk: FaultyDisk(disk, when=strikes))
    rig.ok("PUT", TOPIC, {})
    assert rig.code("GET", f"{TOPIC}/segments") == (503, "cold_unavailable")
    armed.clear()
    assert rig.ok("GET", f"{TOPIC}/segments")["cold_root"] == "/cold"


def test_the_cold_tier_is_marked_before_its_first_segment() -> None:
    rig = ServerRig(cold_dir="/cold", segment_max_events=8, hot_retain_segments=0)
    assert rig.disk.names("/cold/topics") == []
    rig.write("t", *range(8))
    rig.advance(70_000)
    assert rig.disk.names("/cold/topics") == [".driftq.id", "00000001"]
    assert rig.disk.open("/cold/topics/.driftq.id").pread(99, 0).decode().strip() == rig.server.server_id
    rig.disk.unlink("/cold/topics/.driftq.id")
    rig.restart()
    assert rig.disk.names("/cold/topics") == [".driftq.id", "00000001"], "a tier of an earlier version gets its mark"


# Cursors


def test_cursors_are_put_read_listed_by_page_and_deleted(rig: ServerRig) -> None:
    rig.write("t", 1, 2, 3)
    for name in ("b", "a", "a->b"):
        put = rig.ok("PUT", f"{TOPIC}/cursors/{name}", {"seq": 2, "meta": {"k": name}})
        assert (put["cursor"], put["seq"], put["lag"], put["moved"], put["head_seq"]) == (name, 2, 1, True, 3)
    first = rig.ok("GET", f"{TOPIC}/cursors?page_size=2")
    assert [row["cursor"] for row in first["cursors"]] == ["a", "a->b"]
    rest = rig.ok("GET", f"{TOPIC}/cursors?page_size=2&cursor={first['next_cursor']}")
    assert [(row["cursor"], row["meta"]) for row in rest["cursors"]] == [("b", {"k": "b"})]
    assert "next_cursor" not in rest
    assert rig.ok("DELETE", f"{TOPIC}/cursors/a")["deleted"] is True
    assert rig.ok("DELETE", f"{TOPIC}/cursors/a")["deleted"] is False
    assert rig.code("GET", f"{TOPIC}/cursors/a") == (404, "not_found")
    text = rig.reply("GET", "/v0/metrics").whole.decode()
    assert 'driftq_cursor_lag{topic="t",cursor="b"} 1' in text


def test_the_meta_of_a_cursor_has_the_limits_of_any_meta() -> None:
    rig = ServerRig(limits={"meta_bytes_max": 100})
    rig.write("t", 1)
    most = {"k": "x" * (100 - len('{"k":""}'))}
    rig.ok("PUT", f"{TOPIC}/cursors/c", {"seq": 0, "meta": most})
    for meta in ({"k": most["k"] + "x"}, {str(number): "" for number in range(65)}):
        assert rig.code("PUT", f"{TOPIC}/cursors/c", {"seq": 1, "meta": meta}) == (400, "invalid_request")
    assert rig.ok("GET", f"{TOPIC}/cursors/c")["meta"] == most


# Staged writes


def test_a_commit_answers_as_a_write_and_a_repeated_one_as_deduped(rig: ServerRig) -> None:
    staged = _stage(rig, "a", "b", batch=7, part=3, attempt=2)
    assert (staged["batch"], staged["part"], staged["attempt"], staged["chunk"]) == (7, 3, 2, 0)
    assert (staged["records"], staged["bytes"]) == (2, 6)
    asked = {"writer": "w", "batch": 7, "parts": [{"part": 3, "attempt": 2, "chunks": 1}]}
    done = rig.ok("POST", f"{TOPIC}/commit", asked)
    assert (done["first_seq"], done["last_seq"], done["seqs"], done["deduped"]) == (1, 2, [1, 2], False)
    assert done["performance"]["fsync_ms"] == 0
    again = rig.ok("POST", f"{TOPIC}/commit?return_seqs=false", asked)
    assert (again["first_seq"], again["deduped"], "seqs" in again) == (1, True, False)
    older = rig.ok("POST", f"{TOPIC}/commit", asked | {"batch": 6})
    assert (older["first_seq"], older["last_seq"], older["seqs"], older["count"]) == (None, None, None, 0)
    found = rig.ok("GET", f"{TOPIC}/writers/w")
    assert (found["last_batch"], found["first_seq"], found["last_seq"]) == (7, 1, 2)


def test_repeated_commits_are_counted(rig: ServerRig) -> None:
    _stage(rig, "a", writer="w", batch=7, part=0, attempt=0)
    asked = {"writer": "w", "batch": 7, "parts": [{"part": 0, "attempt": 0, "chunks": 1}]}
    for _ in range(3):
        rig.ok("POST", f"{TOPIC}/commit", asked)
    assert rig.ok("GET", "/v0/metrics", headers={"accept": "application/json"})["repeated_commits"] == 2
    assert "\ndriftq_repeated_commits_total 2\n" in rig.reply("GET", "/v0/metrics").whole.decode()


def test_a_part_may_create_its_topic(rig: ServerRig) -> None:
    path, body = "/v0/topics/new/stage?writer=w&batch=1&part=0&attempt=0", {"records": [{"data": 1}]}
    assert rig.code("POST", path, body) == (404, "topic_not_found")
    assert rig.code("POST", f"{path}&create=false", body) == (404, "topic_not_found")
    assert rig.ok("POST", f"{path}&create=true", body)["records"] == 1
    assert rig.ok("POST", f"{path}&create=true", body)["records"] == 1
    assert rig.code("POST", "/v0/topics/@new/stage?writer=w&batch=1&part=0&attempt=0&create=true", body)[0] >= 400


@pytest.mark.parametrize("bad", ["batch=-1", "batch=x", "batch=18446744073709551616", "batch=", "chunk=x", "chunk="])
def test_an_address_that_cannot_be_read_is_refused(rig: ServerRig, bad: str) -> None:
    name = bad.partition("=")[0]
    rest = "&".join(f"{k}=1" for k in ("writer", "batch", "part", "attempt") if k != name)
    assert rig.code("POST", f"{TOPIC}/stage?{bad}&{rest}", {"records": [{"data": 1}]}) == (400, "invalid_request")


# Arrow


def test_a_diff_as_arrow_and_a_write_from_it_are_each_others_inverse(rig: ServerRig) -> None:
    body = _arrow({"data": ['{"n":1}', "2"], "tag": ["t", None], "meta": [None, '{"k":"v"}']})
    path = f"{TOPIC}?node=n1&idempotency_key=k"
    for deduped in (False, True):
        done = rig.ok("POST", path, raw=body, headers={"Content-Type": ARROW})
        assert (done["first_seq"], done["last_seq"], done["deduped"], "seqs" in done) == (1, 2, deduped, False)
    reply = rig.reply("POST", f"{TOPIC}/diff", {}, headers={"Accept": ARROW})
    assert (reply.status, reply.content_type) == (200, ARROW.encode())
    rows = pa.ipc.open_stream(reply.whole).read_all().to_pylist()
    assert [(row["seq"], row["node"], row["tag"], row["meta"], row["data"]) for row in rows] == [
        (1, "n1", "t", None, '{"n":1}'),
        (2, "n1", None, '{"k":"v"}', "2"),
    ]


def test_an_arrow_write_creates_a_topic_unless_told_not_to(rig: ServerRig) -> None:
    body, headers = _arrow({"data": ["1"]}), {"Content-Type": ARROW}
    assert rig.code("POST", "/v0/topics/new?create=false", raw=body, headers=headers) == (404, "topic_not_found")
    assert rig.ask("POST", "/v0/topics/new?return_seqs=true", raw=body, headers=headers).status == 201


def test_a_part_may_come_as_arrow(rig: ServerRig) -> None:
    path = f"{TOPIC}/stage?writer=w&batch=1&part=0&attempt=0"
    staged = rig.ok("POST", path, raw=_arrow({"data": ["1", "2"]}), headers={"Content-Type": ARROW})
    assert staged["records"] == 2
    rig.ok("POST", f"{TOPIC}/commit", {"writer": "w", "batch": 1, "parts": [{"part": 0, "attempt": 0, "chunks": 1}]})
    assert [record["data"] for record in rig.diff("t")["records"]] == [1, 2]


def test_an_arrow_diff_waits_as_a_json_one_does(rig: ServerRig) -> None:
    waiting = rig.send("POST", f"{TOPIC}/diff", {"wait_ms": 1000}, headers={"Accept": ARROW})
    rig.run()
    assert settled(waiting) is None
    rig.write("t", "v")
    reply = settled(waiting)
    assert reply is not None
    assert pa.ipc.open_stream(reply.whole).read_all().to_pylist()[0]["data"] == '"v"'


@pytest.mark.parametrize("shards", [1, 3])
def test_commits_and_routers_go_together_over_kills(shards: int) -> None:
    """A commit to a source is copied, one to a destination stands among copies; after a kill all is as it was."""
    rig = ServerRig(wal_shards=shards)
    for name in ("t", "dest"):
        rig.ok("PUT", f"/v0/topics/{name}", {"durability": "fsync"})
    rig.ok("PUT", "/v0/routers/r", {"source": "t", "dest": "dest"})
    asked = {"writer": "w", "batch": 1, "parts": [{"part": 0, "attempt": 0, "chunks": 1}]}
    _stage(rig, *range(300))
    rig.ok("POST", f"{TOPIC}/commit", asked)
    assert rig.diff("dest", limit=1000)["head_seq"] == 300
    path = "/v0/topics/dest"
    rig.ok("POST", f"{path}/stage?writer=w&batch=1&part=0&attempt=0", {"records": [{"data": "own"}] * 3})
    assert rig.ok("POST", f"{path}/commit", asked)["first_seq"] == 301
    rig.write("t", "more")
    found = [record["data"] for record in rig.diff("dest", limit=1000)["records"]]
    assert found == [*range(300), *["own"] * 3, "more"]
    for _ in range(2):
        rig.kill()
        assert [record["data"] for record in rig.diff("dest", limit=1000)["records"]] == found
        assert rig.ok("POST", f"{path}/commit", asked)["deduped"]
        assert rig.ok("POST", f"{TOPIC}/commit", asked)["deduped"]
