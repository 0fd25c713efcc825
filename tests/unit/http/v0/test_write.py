"""Writes over the wire (http-v0 §7)."""

from typing import Any

import pytest

from driftq.http.v0.records import record_bodies as wire
from driftq.http.v0.records import records
from driftq.testing import FaultyDisk, ServerRig, decoded_reply, settled

PATH = "/v0/topics/t"


@pytest.fixture
def rig() -> ServerRig:
    return ServerRig()


def one(data: Any = 1, **fields: Any) -> dict[str, Any]:
    return {"records": [{"data": data}], **fields}


def test_the_answer_has_these_fields_and_no_other(rig: ServerRig) -> None:
    """inv: 1"""
    status, body = rig.ask("POST", PATH, {"records": [{"data": "a"}, {"data": "b"}]})
    figures = body.pop("performance")
    assert status == 201
    assert body == {
        "topic": "t",
        "first_seq": 1,
        "last_seq": 2,
        "seqs": [1, 2],
        "head_seq": 2,
        "count": 2,
        "created": True,
        "deduped": False,
        "synced_seq": 0,
    }
    assert set(figures) == {"server_total_ms", "wal_append_ms", "fsync_ms"}
    status, body = rig.ask("POST", f"{PATH}?return_seqs=false", one())
    assert (status, body["first_seq"], body["created"], "seqs" in body) == (200, 3, False, False)


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_only_class_fsync_reports_a_sync(rig: ServerRig, durability: str) -> None:
    """inv: 77"""
    rig.ok("PUT", PATH, {"durability": durability})
    for size in (1, 1000):
        figures = rig.write("t", *range(size))["performance"]
        assert (figures["fsync_ms"] > 0) == (durability == "fsync")
        assert figures["fsync_ms"] == 0.0 or durability == "fsync"


def test_a_write_is_answered_after_its_commit_and_times_tell_of_the_wait(rig: ServerRig) -> None:
    rig.ok("PUT", PATH, {"durability": "fsync"})
    rig.runtime.hold("driftq-wal-0")
    answer = rig.send("POST", PATH, one())
    rig.run()
    assert settled(answer) is None
    assert rig.diff("t")["records"] == []
    rig.clock.advance(7)
    rig.runtime.release("driftq-wal-0")
    rig.run()
    reply = settled(answer)
    assert reply is not None
    figures = decoded_reply(reply).body["performance"]
    assert figures["server_total_ms"] == 7.0
    assert 6.9 < figures["wal_append_ms"] + figures["fsync_ms"] <= 7.001


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"records": []}, "invalid_request"),
        ({}, "invalid_request"),
        ({"records": [{}]}, "invalid_request"),
        ({"records": [{"data": 1}, {"data": 2, "tag": "x" * 257}]}, "invalid_request"),
        ({"records": [{"data": 1, "meta": {"a": 1}}]}, "invalid_request"),
        ({"records": [{"data": "x" * (1 << 20)}]}, "record_too_large"),
        ({"records": [{"data": 1}] * 10_001}, "batch_too_large"),
        ({"records": [{"data": 1}], "config": {"ttl_ms": "x"}}, "invalid_request"),
        ({"records": [{"data": 1}], "config": {"dead_letter": "-"}}, "invalid_request"),
        ({"records": [{"data": 1}] * 3, "config": {"cap_records": 2, "discard": "reject"}}, "record_too_large"),
    ],
)
def test_a_refused_write_leaves_no_topic_behind(rig: ServerRig, body: dict[str, Any], code: str) -> None:
    """inv: 18, 19"""
    assert rig.code("POST", PATH, body) == (400, code)
    assert rig.code("GET", PATH) == (404, "topic_not_found")


def test_create_and_auto_create_decide(rig: ServerRig) -> None:
    """inv: 20"""
    for fields, creates in (
        ({"create": False}, False),
        ({"create": False, "config": {"auto_create": True}}, False),
        ({"config": {"auto_create": False}}, False),
        ({"create": None, "config": {"auto_create": False}}, False),
        ({"create": True, "config": {"auto_create": False}}, True),
        ({"create": None, "config": None}, True),
    ):
        status, body = rig.ask("POST", PATH, one(**fields))
        if creates:
            assert (status, body["created"]) == (201, True)
            rig.ok("DELETE", PATH)
        else:
            assert (status, body["error"]["detail"]) == (404, {"topic": "t"})
            assert rig.code("GET", PATH) == (404, "topic_not_found")


def test_a_repeated_key_gets_the_first_answer_again(rig: ServerRig) -> None:
    """inv: 22, 24, 25"""
    rig.ok("PUT", PATH, {"cap_records": 3, "discard": "reject", "idempotency_window_ms": 1000})
    first = rig.ok("POST", PATH, {"records": [{"data": 1}, {"data": 2}], "idempotency_key": "k"})
    rig.write("t", 3)
    assert rig.code("POST", PATH, one()) == (422, "topic_full")
    status, again = rig.ask("POST", PATH, one(idempotency_key="k"))
    assert (status, rig.ok("GET", PATH)["count"]) == (200, 3)
    assert set(again.pop("performance")) == {"server_total_ms"}
    first.pop("performance")
    assert again == first | {"deduped": True}
    header = {"Idempotency-Key": "k"}
    assert rig.ok("POST", PATH, one(), headers=header)["seqs"] == [1, 2]
    assert rig.ok("POST", PATH, one(idempotency_key=None), headers=header)["seqs"] == [1, 2]
    assert rig.code("POST", PATH, one(idempotency_key="other"), headers=header) == (422, "topic_full")
    rig.ok("POST", f"{PATH}/delete", {"before_seq": 4})
    rig.clock.advance(1001)
    assert rig.ok("POST", PATH, one(idempotency_key="k"))["seqs"] == [4]


def test_writes_with_one_key_that_race_append_once(rig: ServerRig) -> None:
    """inv: 23"""
    answers = [rig.send("POST", PATH, one(n, idempotency_key="k")) for n in range(50)]
    rig.run()
    bodies = [decoded_reply(reply).body for answer in answers if (reply := settled(answer)) is not None]
    assert [body["seqs"] for body in bodies] == [[1]] * 50
    assert [body["deduped"] for body in bodies].count(False) == 1
    assert rig.ok("GET", PATH)["head_seq"] == 1


def test_a_key_survives_a_crash_in_class_fsync(rig: ServerRig) -> None:
    """inv: 24, 78"""
    rig.ok("PUT", PATH, {"durability": "fsync"})
    record = {"data": {"x": [1, None]}, "tag": "g", "node": "n", "meta": {"k": "v"}}
    first = rig.ok("POST", PATH, {"records": [record], "idempotency_key": "k"})
    before = rig.diff("t", include_tags=True)["records"]
    rig.crash()
    assert rig.diff("t", include_tags=True)["records"] == before
    again = rig.ok("POST", PATH, {"records": [record], "idempotency_key": "k"})
    assert (again["deduped"], again["seqs"]) == (True, first["seqs"])


def test_a_key_of_a_header_that_is_no_utf8_or_too_long_is_refused(rig: ServerRig) -> None:
    request = rig.request("POST", PATH, one())
    request.headers.append((b"idempotency-key", b"\xff"))
    reply = settled(rig.app.handle(request))
    assert reply is not None
    assert reply.status == 400
    assert rig.code("POST", PATH, one(), headers={"idempotency-key": "x" * 257}) == (400, "invalid_request")


def test_a_full_topic_refuses_with_where_it_stands(rig: ServerRig) -> None:
    """inv: 17"""
    rig.ok("PUT", PATH, {"cap_records": 2, "discard": "reject"})
    rig.write("t", 1, 2)
    status, body = rig.ask("POST", PATH, one(disable_backpressure=True))
    assert (status, body["error"]["code"]) == (422, "topic_full")
    detail = {"topic": "t", "cap_records": 2, "cap_bytes": 0, "head_seq": 2, "earliest_seq": 1}
    assert body["error"]["detail"] == detail
    rig.ok("POST", f"{PATH}/delete", {"before_seq": 2})
    assert rig.write("t", 3)["seqs"] == [3]


def test_writes_that_race_never_pass_the_total_of_bytes(rig: ServerRig) -> None:
    rig = ServerRig(limits={"total_bytes_max": 30})
    answers = [rig.send("POST", f"/v0/topics/t{n % 3}", one(1234567890)) for n in range(9)]
    rig.run()
    replies = [reply for answer in answers if (reply := settled(answer)) is not None]
    assert [reply.status for reply in replies].count(429) == 6
    refused = next(reply for reply in replies if reply.status == 429)
    assert dict(refused.headers)[b"retry-after"] == b"1"
    assert decoded_reply(refused).body["error"]["detail"] == {"limit": "max_total_bytes", "max": 30}
    assert sum(row["bytes"] for row in rig.ok("GET", "/v0/topics")["topics"]) == 30


def test_a_failed_commit_is_500_and_shows_nothing() -> None:
    broken = False
    rig = ServerRig(wrap=lambda disk: FaultyDisk(disk, forever=True, when=lambda *_: broken))
    rig.ok("PUT", PATH, {"durability": "fsync"})
    broken = True
    assert rig.code("POST", PATH, one(idempotency_key="k")) == (500, "internal")
    assert rig.code("PUT", "/v0/topics/new", {}) == (500, "internal")
    page = rig.diff("t")
    assert (page["records"], page["head_seq"]) == ([], 0)


def test_the_media_type_is_looked_at_before_topic_and_json(rig: ServerRig) -> None:
    """inv: 34"""
    for headers in ({"content-type": "text/plain"}, {"content-type": ""}, {"content-type": "Application/JSON"}):
        assert rig.code("POST", PATH, raw=b"{", headers=headers) == (415, "unsupported_media_type")
    for kind in ("application/json; charset=utf-8", "  application/json"):
        assert rig.code("POST", PATH, raw=b"{", headers={"content-type": kind}) == (400, "invalid_request")
    assert rig.code("POST", PATH) == (415, "unsupported_media_type")
    assert rig.code("POST", PATH, headers={"content-type": "application/json"}) == (400, "invalid_request")


def test_a_body_that_is_too_long_is_413_before_all_else(rig: ServerRig) -> None:
    rig = ServerRig(limits={"body_bytes_max": 20})
    for path in (PATH, f"{PATH}/diff", f"{PATH}/delete"):
        status, body = rig.ask("POST", path, raw=b"x" * 21, headers={"content-type": "text/plain"})
        assert (status, body["error"]["code"], body["error"]["detail"]) == (413, "payload_too_large", {"max": 20})
    assert rig.ask("PUT", PATH, raw=b"x" * 21).status == 413


def test_a_bug_met_by_one_write_is_its_own(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig.ok("PUT", PATH, {})
    calls = iter(range(3))
    shown = wire.written_reply

    def broken(*arguments: Any) -> Any:
        if next(calls) == 1:
            raise ZeroDivisionError("inside")
        return shown(*arguments)

    monkeypatch.setattr(records, "written_reply", broken)
    answers = [rig.send("POST", PATH, one()) for _ in range(3)]
    rig.run()
    assert [reply.status for answer in answers if (reply := settled(answer))] == [200, 500, 200]
    assert "inside" in caplog.text
