"""The batch forms of ack, nack, extend, release and the idempotency calls (http-v1 §22)."""

from typing import Any

import pytest

from driftq.errors import InternalError
from driftq.system.disk import Site
from driftq.testing import ServerRig, decoded_reply, settled
from tests.unit.http.v1.client import Client

HELD = {"topic": "t", "group": "g", "owner": "a"}
NOT_OWNER = {"code": 409, "error": "FAILED_PRECONDITION", "message": "not owner"}
NOT_IN_FLIGHT = {"code": 400, "error": "INVALID_ARGUMENT", "message": "message is not in-flight"}
SETTLING = ["/v1/ack", "/v1/nack", "/v1/extend", "/v1/release"]
KEYS = [f"/v1/idempotency/{verb}" for verb in ("begin", "renew", "commit", "fail")]


def refused(message: str, code: int = 400, error: str = "INVALID_ARGUMENT") -> dict[str, Any]:
    return {"code": code, "error": error, "message": message}


def batch(client: Client, path: str, entries: list[Any], **shared: Any) -> list[dict[str, Any]]:
    """Ask; the results."""
    found = client.ok("POST", f"{path}/batch", HELD | shared | {"entries": entries})
    assert set(found) == {"results"}
    results: list[dict[str, Any]] = found["results"]
    assert len(results) == len(entries)
    return results


def at(offset: Any, partition: Any = 0, **more: Any) -> dict[str, Any]:
    return {"partition": partition, "offset": offset, **more}


@pytest.fixture
def client() -> Client:
    """A topic with eight messages, all of them delivered to owner `a`."""
    client = Client()
    client.create()
    client.produce(*"01234567")
    assert len(client.consume().take()) == 8
    return client


def test_each_entry_has_the_answer_of_a_single_call_and_fails_no_other(client: Client) -> None:
    assert batch(client, "/v1/ack", [at(1)]) == [{"code": 204}]
    results = batch(
        client,
        "/v1/ack",
        [at(0), at(1), at(99), at(0, 5), at(-1), at(0, -1), at(None), at("2"), at(2, 1.5), at(2, True), {}, at(3)],
    )
    assert results == [
        {"code": 204},
        {"code": 204},
        NOT_IN_FLIGHT,
        refused("partition out of range"),
        refused("offset cannot be negative"),
        refused("partition cannot be negative"),
        refused("partition and offset are required"),
        refused("invalid offset"),
        refused("invalid partition"),
        refused("invalid partition"),
        refused("partition and offset are required"),
        {"code": 204},
    ]
    assert batch(client, "/v1/ack", [at(4), at(0)], owner="b") == [NOT_OWNER, {"code": 204}]
    assert batch(client, "/v1/nack", [at(0), at(4, reason="no", delay_ms=-1), at(5, delay_ms=0, reason=" x ")]) == [
        NOT_IN_FLIGHT,
        refused("invalid delay_ms"),
        {"code": 204},
    ]
    extended = batch(client, "/v1/extend", [at(0), at(6), at(99)], lease_ms=90_000)
    assert extended == [NOT_IN_FLIGHT, {"code": 200, "deadline_ms": client.clock.wall_ms() + 90_000}, NOT_IN_FLIGHT]
    assert batch(client, "/v1/release", [at(0), at(7), at(7)]) == [NOT_IN_FLIGHT, {"code": 204}, NOT_IN_FLIGHT]
    client.restart()
    left = {item["offset"]: (item["attempts"], item["last_error"]) for item in client.consume(owner="b").take()}
    assert left == {2: (1, ""), 4: (1, ""), 5: (2, "x"), 6: (1, ""), 7: (1, "")}


@pytest.mark.parametrize("path", SETTLING + KEYS)
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"topic": " "}, "are required"),
        ({"group": None}, "are required"),
        ({"owner": ""}, "are required"),
        ({"entries": None}, "a batch has 1 to 1000 entries"),
        ({"entries": []}, "a batch has 1 to 1000 entries"),
        ({"entries": [{}] * 1001}, "a batch has 1 to 1000 entries"),
        ({"entries": {}}, "invalid json body: "),
        ({"entries": [5]}, "invalid json body: "),
        ({"entries": [{"extra": 1}]}, "invalid json body: "),
        ({"extra": 1}, "invalid json body: "),
    ],
)
def test_what_is_wrong_with_shared_fields_or_the_json_refuses_the_call(
    client: Client, path: str, changed: dict[str, Any], message: str
) -> None:
    lease = {"lease_ms": 1000} if path == "/v1/extend" else {}
    good = {"idempotency_key": "k"} if path in KEYS else at(0)
    status, body = client.ask("POST", f"{path}/batch", HELD | lease | {"entries": [good]} | changed)
    assert (status, body["error"]) == (400, "INVALID_ARGUMENT")
    assert message in body["message"]


def test_a_topic_that_there_is_not_and_a_lease_that_is_none_refuse_the_call(client: Client) -> None:
    for path in SETTLING:
        lease = {"lease_ms": 1000} if path == "/v1/extend" else {}
        status, body = client.ask("POST", f"{path}/batch", HELD | lease | {"topic": "nope", "entries": [at(0)]})
        assert (status, body["message"]) == (400, "topic does not exist")
    for lease_ms in (None, 0, "5", 2**63):
        status, body = client.ask("POST", "/v1/extend/batch", HELD | {"lease_ms": lease_ms, "entries": [at(0)]})
        assert (status, body["message"]) == (400, "invalid lease_ms")


class Commits:
    """How often a server has synced its log, and how many frames it has logged, since the last look."""

    def __init__(self, rig: ServerRig) -> None:
        self._rig = rig
        self.since()

    def since(self) -> tuple[int, int]:
        """Return syncs and frames."""
        now = self._rig.disk.synced[Site.WAL_COMMIT], self._rig.server.engine.shards.all[0].counters.frames
        before = getattr(self, "_before", now)
        self._before = now
        return now[0] - before[0], now[1] - before[1]


def test_a_batch_is_one_commit_of_the_log() -> None:
    client = Client(in_flight_max=0x7FFF)
    client.create("t", 3)
    for n in range(600):
        client.produce(str(n), partition_override=n % 3)
    assert len(client.consume().take()) == 600
    places = [at(n, n % 3) for n in range(600)]
    keys = [{"idempotency_key": f"k{n}"} for n in range(100)]
    commits = Commits(client)
    assert batch(client, "/v1/ack", places[:300]) == [{"code": 204}] * 300
    assert commits.since() == (1, 1), "acks are one frame"
    assert batch(client, "/v1/nack", [one | {"delay_ms": 1000} for one in places[300:400]]) == [{"code": 204}] * 100
    assert commits.since() == (1, 100)
    batch(client, "/v1/extend", places[400:], lease_ms=60_000)
    batch(client, "/v1/release", places[500:])
    batch(client, "/v1/idempotency/begin", keys)
    batch(client, "/v1/idempotency/renew", keys)
    assert commits.since() == (0, 0), "leases are not logged"
    found = batch(client, "/v1/idempotency/commit", keys[:60])
    assert found == [{"code": 200, "status": "COMMITTED", "already_done": True}] * 60
    assert commits.since() == (1, 60)
    batch(client, "/v1/idempotency/fail", keys[60:])
    assert commits.since() == (1, 40)


def singles(client: Client, path: str, entries: list[Any], **shared: Any) -> list[dict[str, Any]]:
    """The same by single calls, none of which waits for the answer to another; as results."""
    answers = [client.send("POST", path, HELD | shared | entry) for entry in entries]
    client.run()
    results = []
    for answer in answers:
        reply = settled(answer)
        assert reply is not None
        results.append({"code": reply.status, **(decoded_reply(reply).body if reply.body else {})})
    return results


@pytest.mark.parametrize(
    ("path", "shared", "entries"),
    [
        ("/v1/ack", {}, [at(0), at(2), at(0), at(8), at(1)]),
        ("/v1/nack", {}, [at(0, reason="a"), at(0, reason="b"), at(9), at(3, dead_letter=True), at(1, delay_ms=50)]),
        ("/v1/extend", {"lease_ms": 7000}, [at(5), at(9), at(5)]),
        ("/v1/idempotency/begin", {"lease_ms": 5000}, [{"idempotency_key": k} for k in ("x", "held", "done", "x")]),
        ("/v1/idempotency/begin", {"lease_ms": 1}, [{"idempotency_key": "x"}]),
        ("/v1/idempotency/renew", {}, [{"idempotency_key": k} for k in ("mine", "held", "done", "none", " ")]),
        (
            "/v1/idempotency/commit",
            {},
            [
                {"idempotency_key": "mine", "result": "eA=="},
                {"idempotency_key": "mine", "result": "eQ=="},
                {"idempotency_key": "mine", "tenant_id": "other"},
                {"idempotency_key": "held"},
                {"idempotency_key": "done"},
                {"idempotency_key": "none", "result": "?"},
            ],
        ),
        ("/v1/idempotency/fail", {}, [{"idempotency_key": k, "error": "e"} for k in ("mine", "mine", "held", "none")]),
    ],
)
def test_a_batch_is_like_its_entries_in_order(path: str, shared: dict[str, Any], entries: list[dict[str, Any]]) -> None:
    found = []
    for together in (True, False):
        client = Client()
        client.create()
        client.produce(*"01234567")
        client.consume().take()
        for key, owner in (("mine", "a"), ("held", "b"), ("done", "c")):
            client.ok("POST", "/v1/idempotency/begin", HELD | {"owner": owner, "idempotency_key": key})
        client.ok("POST", "/v1/idempotency/commit", HELD | {"owner": "c", "idempotency_key": "done", "result": "eg=="})
        ask = batch if together else singles
        results = ask(client, path, entries, **shared)
        client.restart()
        group = client.ok("GET", "/v1/groups?topic=t")
        known = [
            client.ask("GET", f"/v1/idempotency?topic=t&group=g&idempotency_key={key}") for key in ("mine", "held", "x")
        ]
        left = sorted((one["offset"], one["attempts"], one["last_error"]) for one in client.consume(owner="z").take())
        found.append((results, group, known, left))
    assert found[0] == found[1]


def test_keys_of_a_batch_may_have_tenants_of_their_own(client: Client) -> None:
    entries = [{"idempotency_key": "k"}, {"idempotency_key": "k", "tenant_id": "t1"}]
    assert [one["status"] for one in batch(client, "/v1/idempotency/begin", entries)] == ["PENDING"] * 2
    batch(client, "/v1/idempotency/commit", entries[1:])
    again = batch(client, "/v1/idempotency/begin", entries, owner="b")
    assert [(one["code"], one.get("already_done")) for one in again] == [(409, None), (200, True)]


def test_a_log_that_fails_fails_every_entry_that_needs_it_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    client.create()
    client.produce(*"012")
    client.consume().take()
    assert batch(client, "/v1/ack", [at(0)]) == [{"code": 204}]

    def fails(*_: Any, **__: Any) -> Any:
        raise InternalError("the disk said no")

    monkeypatch.setattr(client.server.engine, "log", fails)
    results = batch(client, "/v1/ack", [at(0), at(1), at(2)])
    assert [one["code"] for one in results] == [204, 500, 500]
    assert results[1]["error"] == "INTERNAL"


def test_a_bug_in_one_entry_is_its_own_result(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    ackable = client.server.broker.settler.ackable

    def buggy(open_message: Any, offset: int, owner: str) -> Any:
        if offset == 1:
            raise ZeroDivisionError
        return ackable(open_message, offset, owner)

    monkeypatch.setattr(client.server.broker.settler, "ackable", buggy)
    assert [one["code"] for one in batch(client, "/v1/ack", [at(0), at(1), at(2)])] == [204, 500, 204]


def test_a_stream_is_ended_by_its_name_after_what_was_delivered_on_it() -> None:
    client = Client()
    client.create()
    client.produce("0", "1")
    _, named = client.stream("/v1/consume?topic=t&group=g&owner=a&stream=%20mine&max_in_flight=1000")
    _, other = client.stream("/v1/consume?topic=t&group=h&owner=a")
    client.run()
    body = HELD | {"stream": "mine "}
    assert client.ask("POST", "/v1/leave", body) == (200, {"streams": 1})
    assert client.ask("POST", "/v1/leave", body) == (200, {"streams": 0})
    assert len(named.taken().splitlines()) == 2
    assert (named.ended, other.ended) == (True, False)
    assert batch(client, "/v1/release", [at(0), at(1)]) == [{"code": 204}] * 2
    client.produce("2")
    assert [item["attempts"] for item in client.consume(owner="b").take()] == [1, 1, 1]
    for missing in ("topic", "group", "owner", "stream"):
        status, found = client.ask("POST", "/v1/leave", body | {missing: " "})
        assert (status, found["message"]) == (400, "topic, group, owner, and stream are required")
    assert client.ask("POST", "/v1/leave", body | {"topic": "nope"}).status == 400
    assert client.ask("POST", "/v1/leave", body | {"extra": 1}).status == 400


def test_a_batch_needs_what_a_single_call_needs() -> None:
    rig = ServerRig(keys="reader:r,other:w:@x,writer:w:@t,admin:rw+a")
    for path in SETTLING + KEYS:
        body = HELD | {"lease_ms": 1000} if path == "/v1/extend" else HELD
        for key, status in (("reader", 403), ("other", 403), ("nobody", 401)):
            asked = rig.ask("POST", f"{path}/batch", body | {"entries": [{}]}, key=key)
            assert (path, key, asked.status) == (path, key, status)
        assert rig.ask("POST", f"{path}/batch", body | {"entries": [{}]}, key="writer").status in (200, 400)
        assert rig.ask("GET", f"{path}/batch", key="admin").status == 405
    for key, status in (("reader", 403), ("writer", 403), ("other", 403), ("nobody", 401), ("admin", 400)):
        assert rig.ask("POST", "/v1/leave", HELD | {"stream": "s"}, key=key).status == status
