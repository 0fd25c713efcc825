"""Records that cannot be read now, seen from every door of the server: an error or a retry, and never a loss."""

import errno
from typing import Any

import pytest
from msgspec import json

from driftq.errors import StartError
from driftq.testing import ServerRig, SimDisk
from driftq.testing.server_rig import KeptSink
from tests.unit.engine.unreadable import Fault, filled
from tests.unit.http.v0.events import Watcher

ERRORS = [errno.ENOENT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT]
ARROW = {"accept": "application/vnd.apache.arrow.stream"}
TIERS = {"cold": (".parquet", "cold_unavailable"), "hot": (".data", "segment_unavailable")}


class Outage:
    """A server with 24 records of topic `t` in three segments of one tier, which cannot be read while `fault` is on."""

    def __init__(self, tier: str, error: int, *, routed: bool = False, **config: Any) -> None:
        """`routed` adds a router to a topic `copies`, which takes four records and no more."""
        suffix, self.code = TIERS[tier]
        self.fault = Fault(error, suffix)
        self.rig = ServerRig(
            disk=SimDisk(roots=("/data", "/cold", "/to")),
            wrap=self.fault.wrap,
            segment_max_events=8,
            cache_bytes=1,
            cold_dir="/cold" if tier == "cold" else None,
            backup_dir="/to",
            hot_retain_segments=0,
        )
        self.rig.ok("PUT", "/v0/topics/t", config)
        if routed:
            self.rig.ok("PUT", "/v0/topics/copies", {"cap_records": 4, "discard": "reject"})
            self.rig.ok("PUT", "/v0/routers/r", {"source": "t", "dest": "copies"})
        for first in range(1, 25, 4):
            self.rig.write("t", *range(first, first + 4))
            self.rig.advance(10)
        self.rig.advance(70_000)
        assert {segment.cold for segment in self.topic.segments} == {tier == "cold"}
        self.rig.restart()
        self.files = self.file_names()
        self.fault.on = True

    @property
    def topic(self) -> Any:
        return self.rig.server.engine.catalog.get("t")

    def file_names(self) -> set[str]:
        """Return every segment file of the topic."""
        roots = ("/data/topics/00000001", "/cold/topics/00000001")
        return {f"{root}/{name}" for root in roots for name in self.rig.disk.names(root)}

    def ends(self) -> None:
        """End the outage and check that it has cost nothing, now and after a restart."""
        self.fault.on = False
        for _ in range(2):
            page = self.rig.diff("t")
            assert [record["$seq"] for record in page["records"]] == list(range(1, 25))
            assert page["tombstone"] is None
            assert self.topic.holes.all == []
            assert self.files <= self.file_names()
            self.rig.restart()


def frames_of(sink: KeptSink) -> list[Any]:
    """Return the data of the frames that came since the last call."""
    lines = sink.taken().splitlines()
    return [json.decode(line.removeprefix(b"data: ")) for line in lines if line.startswith(b"data: ")]


@pytest.fixture(params=ERRORS, ids=lambda code: errno.errorcode[code])
def error(request: pytest.FixtureRequest) -> int:
    code: int = request.param
    return code


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    ("body", "headers"),
    [({"from_seq": 0}, {}), ({"from_seq": 9}, ARROW), ({"from_seq": 0, "wait_ms": 50}, {})],
    ids=["diff", "arrow", "poll"],
)
def test_a_diff_is_refused_with_a_time_to_retry(tier: str, error: int, body: Any, headers: dict[str, str]) -> None:
    """proves: G-IO-8; row: F-COLD-1, F-COLD-2"""
    outage = Outage(tier, error)
    reply = outage.rig.reply("POST", "/v0/topics/t/diff", body, headers=headers)
    assert reply.status == 503
    assert (b"retry-after", b"1") in reply.headers
    assert outage.rig.code("POST", "/v0/topics/t/diff", body, headers=headers) == (503, outage.code)
    outage.ends()


@pytest.mark.parametrize("tier", TIERS)
def test_a_diff_from_a_time_is_refused(tier: str, error: int) -> None:
    """proves: G-IO-8"""
    outage = Outage(tier, error)
    middle = outage.topic.segments[1].last_ts
    assert outage.rig.code("POST", "/v0/topics/t/diff", {"from_ts": middle}) == (503, outage.code)
    outage.ends()


@pytest.mark.parametrize("tier", TIERS)
def test_a_watch_gets_one_error_frame_keeps_its_cursor_and_goes_on(tier: str, error: int) -> None:
    """proves: G-IO-8; row: F-COLD-1"""
    outage = Outage(tier, error)
    outage.rig.write("u", 1)
    watcher = Watcher(outage.rig, ["t", "u"])
    outage.rig.advance(5000)
    events = [event for event in watcher.events() if event.event != "comment"]
    assert [event.event for event in events] == ["retry", "error", "record", "caught-up"], "the other topic goes on"
    frame = events[1]
    assert (frame.id, frame.data["code"], frame.data["error"]) == (None, 503, outage.code)
    assert (frame.data["topics"], frame.data["retry_after_ms"]) == (["t"], 1000)
    outage.fault.on = False
    outage.rig.advance(2000)
    found = [event for event in watcher.events() if event.event == "record"]
    assert [record["$seq"] for event in found for record in event.data["records"]] == list(range(1, 25))
    outage.ends()


@pytest.mark.parametrize("tier", TIERS)
def test_a_socket_gets_one_error_message_and_goes_on(tier: str, error: int) -> None:
    """proves: G-IO-8"""
    outage = Outage(tier, error)
    upgrade, sink = outage.rig.socket()
    upgrade.source.received('{"op":"subscribe","request_id":1,"topic":"t","from_seq":0}')
    outage.rig.advance(5000)
    assert [message["code"] for message in sink.messages() if message["op"] == "error"] == [outage.code]
    outage.fault.on = False
    outage.rig.advance(2000)
    found = [record for message in sink.messages() for record in message.get("records", ())]
    assert [record["$seq"] for record in found] == list(range(1, 25))
    outage.ends()


@pytest.mark.parametrize("tier", TIERS)
def test_a_worker_that_jobs_are_pushed_to_gets_one_error_frame_per_outage_and_then_its_jobs(
    tier: str, error: int
) -> None:
    """proves: G-IO-8; row: F-COLD-1"""
    outage = Outage(tier, error, type="queue")
    _, sink = outage.rig.stream("/v0/topics/t/work?node=w&max=8")
    for first in (1, 9):
        outage.rig.advance(5000)
        (told,) = (frame for frame in frames_of(sink) if "error" in frame)
        assert (told["code"], told["error"]) == (503, outage.code)
        assert (told["topics"], told["retry_after_ms"]) == (["t"], 1000)
        outage.fault.on = False
        outage.rig.advance(1100)
        seqs = list(range(first, first + 8))
        assert [frame["$seq"] for frame in frames_of(sink)] == seqs
        outage.fault.on = True
        assert outage.rig.ok("POST", "/v0/topics/t/ack", {"node": "w", "seqs": seqs})["acked"] == 8


@pytest.mark.parametrize("tier", TIERS)
def test_a_claim_is_refused_and_takes_no_job(tier: str, error: int) -> None:
    """proves: G-IO-8"""
    outage = Outage(tier, error, type="queue")
    claim = {"node": "w", "max": 4}
    assert outage.rig.code("POST", "/v0/topics/t/claim", claim) == (503, outage.code)
    outage.fault.on = False
    claimed = outage.rig.ok("POST", "/v0/topics/t/claim", claim)
    assert [job["$seq"] for job in claimed["claimed"]] == [1, 2, 3, 4]


@pytest.mark.parametrize("tier", TIERS)
def test_a_router_waits_and_copies_everything_when_it_can(tier: str, error: int) -> None:
    """proves: G-IO-8"""
    outage = Outage(tier, error, routed=True)
    outage.rig.ok("PUT", "/v0/topics/copies", {})
    outage.rig.advance(1000)
    assert len(outage.rig.diff("copies")["records"]) < 24
    outage.fault.on = False
    outage.rig.advance(6000)
    page = outage.rig.diff("copies")
    assert ([record["data"] for record in page["records"]], page["tombstone"]) == (list(range(1, 25)), None)
    outage.ends()


@pytest.mark.parametrize("tier", TIERS)
def test_a_backup_fails_with_the_name_of_the_file(tier: str, error: int) -> None:
    """proves: G-IO-8; row: F-COLD-3"""
    outage = Outage(tier, error)
    begun = outage.rig.ask("POST", "/v0/backups", {"to": "/to"}).body["backup"]
    outage.rig.run()
    done = outage.rig.ok("GET", f"/v0/backups/{begun['id']}")["backup"]
    assert done["state"] == "failed"
    assert "seg-0000000000000001" in done["error"]
    outage.ends()
    begun = outage.rig.ask("POST", "/v0/backups", {"to": "/to"}).body["backup"]
    outage.rig.run()
    done = outage.rig.ok("GET", f"/v0/backups/{begun['id']}")["backup"]
    assert (done["state"], done["damaged"]) == ("done", [])


def test_checkpoints_writes_and_configs_need_nothing_of_the_cold_tier(error: int) -> None:
    """proves: G-IO-8"""
    outage = Outage("cold", error)
    rig = outage.rig
    rig.write("t", 25)
    rig.ok("PUT", "/v0/topics/t", {"ttl_ms": 3_600_000})
    before = rig.disk.names("/data/meta")
    rig.advance(61_000)
    assert rig.disk.names("/data/meta") != before
    assert [record["$seq"] for record in rig.diff("t", 24)["records"]] == [25]
    assert rig.ok("GET", "/v0/topics/t/segments")["segments"][0]["tier"] == "cold"
    assert rig.ask("GET", "/v0/ready").status == 200


def _broker(error: int) -> tuple[ServerRig, Fault]:
    """Return a broker whose topic `m` has 24 messages and as many dead letters, all in a cold tier, and its outage."""
    fault = Fault(error, ".parquet")
    rig = ServerRig(
        disk=SimDisk(roots=("/data", "/cold")),
        wrap=fault.wrap,
        segment_max_events=8,
        cache_bytes=1,
        cold_dir="/cold",
        hot_retain_segments=0,
    )
    rig.ok("POST", "/v1/topics?name=m&partitions=1")
    for number in range(24):
        rig.ok("POST", f"/v1/produce?topic=m&value={number}")
        rig.advance(10)
    rig.stream("/v1/consume?topic=m&group=dead&owner=o&lease_ms=60000&max_in_flight=24")
    for number in range(24):
        place = f"topic=m&group=dead&owner=o&partition=0&offset={number}"
        assert rig.reply("POST", f"/v1/nack?{place}&dead_letter=true&reason=no").status == 204
    rig.advance(70_000)
    rig.restart()
    fault.on = True
    return rig, fault


def test_the_broker_answers_503_and_delivers_when_it_can(error: int) -> None:
    """proves: G-IO-8"""
    rig, fault = _broker(error)
    _, sink = rig.stream("/v1/consume?topic=m&group=g&owner=o&lease_ms=60000")
    rig.advance(3000)
    assert b'"value"' not in sink.taken()
    fault.on = False
    rig.advance(3000)
    assert b'"value":"0"' in sink.taken()


def test_a_seek_to_a_time_is_refused_and_moves_nothing(error: int) -> None:
    """proves: G-IO-8"""
    rig, fault = _broker(error)
    middle = rig.server.engine.topic("@m").segments[1].index.first_ts(0) + 25
    body = {"topic": "m", "group": "dead", "to": {"timestamp": middle}, "force": True}
    before = rig.ok("GET", "/v1/groups")
    reply = rig.reply("POST", "/v1/groups/seek", body)
    assert (reply.status, (b"retry-after", b"1") in reply.headers) == (503, True)
    assert rig.ok("GET", "/v1/groups") == before
    fault.on = False
    assert rig.ok("POST", "/v1/groups/seek", body)["moved"][0]["floor_after"] == 10


def test_a_redrive_is_refused_and_moves_nothing(error: int) -> None:
    """proves: G-IO-8"""
    rig, fault = _broker(error)
    asked = {"topic": "m", "dry_run": True}
    for body in (asked, {"topic": "m"}):
        reply = rig.reply("POST", "/v1/dlq/redrive", body)
        assert (reply.status, (b"retry-after", b"1") in reply.headers) == (503, True)
    fault.on = False
    assert rig.ok("POST", "/v1/dlq/redrive", asked) == {"matched": 24}


def test_a_block_index_that_cannot_be_read_refuses_the_start(error: int) -> None:
    """proves: G-IO-8; row: F-COLD-4"""
    outage = Outage("hot", error)
    outage.fault.suffix = ".idx"
    with pytest.raises(StartError, match="cannot be read"):
        outage.rig.restart()
    outage.fault.on = False
    outage.rig.restart()
    outage.ends()


def test_a_tag_index_that_cannot_be_read_is_not_needed(error: int) -> None:
    """proves: G-IO-8"""
    fault = Fault(error, ".tags")
    rig = filled(fault)
    rig.restart()
    fault.on = True
    deleted = rig.delete("t", match="a")
    assert (deleted.deleted, deleted.count, rig.topic("t").holes.all) == (12, 12, [])
    rig.restart()
    assert rig.seqs("t") == list(range(2, 25, 2))


def test_files_of_a_segment_that_was_given_up_are_counted() -> None:
    """row: F-COLD-5"""
    outage = Outage("cold", errno.EIO)
    outage.fault.on = False
    file = outage.rig.disk.open("/cold/topics/00000001/seg-0000000000000001.parquet")
    file.pwritev([bytes([file.pread(1, 100)[0] ^ 1])], 100)
    assert outage.rig.diff("t")["tombstone"]["reason"] == "corruption"
    outage.rig.advance(7000)
    assert "\ndriftq_lost_files 2\n" in outage.rig.reply("GET", "/v0/metrics").whole.decode()
    assert outage.rig.disk.names("/cold/lost/topics/00000001") == [
        "seg-0000000000000001.del",
        "seg-0000000000000001.parquet",
    ]


def test_a_cold_directory_of_another_server_refuses_the_start() -> None:
    """proves: G-REC-11; row: F-START-6"""
    disk = SimDisk(roots=("/data", "/cold", "/other"))
    first = ServerRig(disk=disk, cold_dir="/cold", seed=1, segment_max_events=8, hot_retain_segments=0)
    first.write("t", *range(8))
    first.advance(70_000)
    mark = disk.open("/cold/topics/.driftq.id").pread(99, 0)
    assert first.close()
    with pytest.raises(StartError, match="another server"):
        ServerRig(disk=disk, data_dir="/other", cold_dir="/cold", seed=2)
    assert disk.open("/cold/topics/.driftq.id").pread(99, 0) == mark
    ServerRig(disk=disk, cold_dir="/cold", seed=1)
