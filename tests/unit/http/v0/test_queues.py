"""Claim, ack, nack and extend on the wire: bodies, order of checks, answers, errors."""

from typing import Any

import pytest

from driftq.system.runtime import Pending
from driftq.testing.server_rig import ServerRig, decoded_reply, settled

LONG_MS = 3_600_000
SETTLING: list[tuple[str, dict[str, Any]]] = [("ack", {}), ("nack", {}), ("extend", {"lease_ms": 1000})]


@pytest.fixture
def rig() -> ServerRig:
    rig = ServerRig()
    rig.ok("PUT", "/v0/topics/q", {"type": "queue", "durability": "fsync", "lease_ms": LONG_MS})
    rig.write("q", 1, 2, 3)
    return rig


def call(rig: ServerRig, operation: str, *seqs: int, **fields: Any) -> Any:
    return rig.ok("POST", f"/v0/topics/q/{operation}", {"node": "w", "seqs": seqs, **fields})


def claim(rig: ServerRig, **fields: Any) -> Any:
    return rig.ok("POST", "/v0/topics/q/claim", {"node": "w", **fields})


def test_a_claims_answer(rig: ServerRig) -> None:
    body = claim(rig, max=2)
    assert sorted(body) == ["claimed", "count", "performance", "ready", "topic"]
    assert (body["topic"], body["count"], body["ready"]) == ("q", 2, 1)
    assert sorted(body["claimed"][0]) == ["$seq", "$ts", "data", "deadline", "deliveries", "lease_id"]
    assert body["performance"]["server_total_ms"] >= 0


def test_max_is_one_by_default_and_for_zero_and_never_more_than_allowed() -> None:
    rig = ServerRig(limits={"claim_max": 5})
    rig.ok("PUT", "/v0/topics/q", {"type": "queue"})
    rig.write("q", *range(20))
    assert [claim(rig)["count"], claim(rig, max=0)["count"], claim(rig, max=4000)["count"]] == [1, 1, 5]
    assert rig.code("POST", "/v0/topics/q/ack", {"node": "w", "seqs": list(range(6))}) == (400, "batch_too_large")


def test_the_answers_of_ack_nack_and_extend(rig: ServerRig) -> None:
    claim(rig, max=3)
    body = call(rig, "extend", 1, 9, lease_ms=5000)
    performance = body.pop("performance")
    deadline = rig.clock.wall_ms() + 5000
    assert body == {"topic": "q", "extended": 1, "skipped": [9], "deadlines": {"1": deadline}}
    body = call(rig, "nack", 2, 9)
    assert body | {"performance": performance} == {
        "topic": "q",
        "nacked": 1,
        "skipped": [9],
        "ready": 1,
        "in_flight": 2,
        "performance": performance,
    }
    body = call(rig, "ack", 1, 9)
    assert (body["acked"], body["skipped"], body["ready"], body["in_flight"]) == (1, [9], 1, 1)


def test_the_state_of_a_queue_has_its_counters(rig: ServerRig) -> None:
    claim(rig, max=2)
    assert rig.ok("GET", "/v0/topics/q")["queue"] == {"ready": 1, "in_flight": 2, "dead_lettered": 0}


def test_only_an_ack_that_was_synced_says_how_long_that_took(rig: ServerRig) -> None:
    claim(rig)
    answer = rig.send("POST", "/v0/topics/q/ack", {"node": "w", "seqs": [1]})
    rig.clock.advance(3)
    rig.run()
    assert b'"fsync_ms":3.0' in answer.result().body  # type: ignore[union-attr]
    rig.ok("PUT", "/v0/topics/q", {"type": "queue", "durability": "disk"})
    claim(rig)
    assert "fsync_ms" not in call(rig, "ack", 2)["performance"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"node": None},
        {"node": 5},
        {"node": ""},
        {"node": "x" * 129},
        {"node": "w", "max": -1},
        {"node": "w", "max": 1.0},
        {"node": "w", "max": True},
        {"node": "w", "max": None},
        {"node": "w", "max": 1 << 32},
        {"node": "w", "lease_ms": -1},
        {"node": "w", "lease_ms": "1"},
        {"node": "w", "lease_ms": 1 << 64},
    ],
)
def test_a_claim_of_the_wrong_form_is_refused(rig: ServerRig, body: object) -> None:
    assert rig.code("POST", "/v0/topics/q/claim", body) == (400, "invalid_request")
    assert rig.ok("GET", "/v0/topics/q")["queue"]["ready"] == 3


def test_null_lease_ms_is_absent(rig: ServerRig) -> None:
    (job,) = claim(rig, lease_ms=None, unknown="ignored")["claimed"]
    assert job["deadline"] == rig.clock.wall_ms() + LONG_MS


def test_an_empty_claim_is_400_whatever_its_type(rig: ServerRig) -> None:
    assert rig.code("POST", "/v0/topics/q/claim", raw=b"") == (400, "invalid_request")
    assert rig.code("POST", "/v0/topics/q/claim", raw=b"{}", headers={"Content-Type": "text/plain"})[0] == 415


@pytest.mark.parametrize(("operation", "needed"), SETTLING)
def test_a_settling_call_of_the_wrong_form_is_refused(rig: ServerRig, operation: str, needed: dict[str, Any]) -> None:
    """inv: 68"""
    path = f"/v0/topics/q/{operation}"
    good = {"node": "w", "seqs": [1], **needed}
    for change in (
        {"node": ""},
        {"node": None},
        {"seqs": None},
        {"seqs": [1.0]},
        {"seqs": [True]},
        {"seqs": [-1]},
        {"seqs": [1 << 64]},
        {"lease_ids": "x"},
        {"lease_ids": [None]},
        {"lease_ids": ["nonsense"]},
        {"lease_ids": ["lease_"]},
        {"lease_ids": ["lease_XYZ"]},
        {"lease_ids": ["lease_1\n"]},
        {"lease_ids": ["", ""]},
    ):
        assert rig.code("POST", path, {**good, **change}) == (400, "invalid_request"), change
    assert rig.code("POST", path, raw=b"")[0] == 415
    assert rig.code("POST", path, {**good, "seqs": list(range(1001))}) == (400, "batch_too_large")


def test_extend_needs_a_lease_and_nack_a_delay_that_is_a_number(rig: ServerRig) -> None:
    good = {"node": "w", "seqs": [1]}
    assert rig.code("POST", "/v0/topics/q/extend", good) == (400, "invalid_request")
    assert rig.code("POST", "/v0/topics/q/nack", {**good, "delay_ms": None}) == (400, "invalid_request")


def test_the_order_of_checks(rig: ServerRig) -> None:
    """http-v0 §1.7: a claim looks for the topic before the node, the others at the body before the topic.

    inv: 71
    """
    rig.ok("PUT", "/v0/topics/log", {})
    assert rig.code("POST", "/v0/topics/absent/claim", {"node": ""}) == (404, "topic_not_found")
    assert rig.code("POST", "/v0/topics/log/claim", {"node": ""}) == (409, "not_a_queue")
    assert rig.code("POST", "/v0/topics/absent/claim", {"node": 5}) == (400, "invalid_request")
    for operation, needed in SETTLING:
        for topic, code in (("absent", (404, "topic_not_found")), ("log", (409, "not_a_queue"))):
            path = f"/v0/topics/{topic}/{operation}"
            assert rig.code("POST", path, {"node": "", "seqs": [1], **needed}) == (400, "invalid_request")
            assert rig.code("POST", path, {"node": "w", "seqs": [1], **needed}) == code


def test_scopes() -> None:
    rig = ServerRig(keys="root,r:read,w:write,rw:rw")
    rig.ok("PUT", "/v0/topics/q", {"type": "queue"}, key="root")
    statuses = {
        key: [rig.ask("POST", f"/v0/topics/q/{operation}", body, key=key).status for operation, body in calls]
        for key in ("r", "w", "rw")
        for calls in [[("claim", {"node": "w"}), ("ack", {"node": "w", "seqs": []})]]
    }
    assert statuses == {"r": [403, 403], "w": [403, 200], "rw": [200, 200]}


# Claims that wait


def waiting(rig: ServerRig, **fields: Any) -> Pending[Any]:
    answer = rig.send("POST", "/v0/topics/empty/claim", {"node": "w", "wait_ms": 1000, **fields})
    rig.run()
    assert isinstance(answer, Pending)
    assert not answer.settled
    return answer


def seqs_of(answer: Pending[Any]) -> list[int]:
    reply = settled(answer)
    assert reply is not None
    status, body = decoded_reply(reply)
    assert status == 200
    assert body["count"] == len(body["claimed"])
    return [job["$seq"] for job in body["claimed"]]


def test_a_claim_waits_for_a_job_and_no_longer_than_asked(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/empty", {"type": "queue"})
    served, late = waiting(rig), waiting(rig)
    rig.write("empty", "job")
    assert seqs_of(served) == [1]
    rig.advance(999)
    assert not late.settled
    rig.advance(1)
    assert seqs_of(late) == []


def test_a_wait_is_clamped_to_thirty_seconds(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/empty", {"type": "queue"})
    claim = waiting(rig, wait_ms=90_000)
    rig.advance(29_999)
    assert not claim.settled
    rig.advance(1)
    assert seqs_of(claim) == []


def test_a_worker_that_leaves_has_its_claims_answered(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/empty", {"type": "queue"})
    claim, other = waiting(rig), waiting(rig, node="other")
    body = rig.ok("POST", "/v0/topics/empty/leave", {"node": "w"})
    assert (body["topic"], body["ended"]) == ("empty", 1)
    assert (seqs_of(claim), other.settled) == ([], False)
    rig.write("empty", "job")
    assert seqs_of(other) == [1]
    assert rig.ok("POST", "/v0/topics/empty/leave", {"node": "w"})["ended"] == 0


@pytest.mark.parametrize("fields", [{"wait_ms": -1}, {"wait_ms": 1 << 32}, {"wait_ms": 1.5}, {"wait_ms": None}])
def test_a_wait_is_a_u32(rig: ServerRig, fields: dict[str, Any]) -> None:
    assert rig.code("POST", "/v0/topics/q/claim", {"node": "w", **fields}) == (400, "invalid_request")


def test_a_leave_is_checked_like_a_claim(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/log", {})
    assert rig.code("POST", "/v0/topics/q/leave", {"node": ""}) == (400, "invalid_request")
    assert rig.code("POST", "/v0/topics/q/leave", {}) == (400, "invalid_request")
    assert rig.code("POST", "/v0/topics/absent/leave", {"node": "w"}) == (404, "topic_not_found")
    assert rig.code("POST", "/v0/topics/log/leave", {"node": "w"}) == (409, "not_a_queue")
