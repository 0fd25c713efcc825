"""What this broker adds (http-v1 §22), metrics (§17), and its topics through the other API (§18.1)."""

from typing import Any

import pytest
from msgspec import convert, json

from driftq.model.broker_settings import BrokerSettings
from driftq.model.v1_answers import GroupList
from driftq.testing import ServerRig, decoded_reply, settled
from driftq.testing.server_rig import KeptSink

KEY = {"topic": "t", "group": "g", "idempotency_key": "k", "owner": "a"}


class Broker(ServerRig):
    """A server with a topic, and the short words that tests want."""

    def __init__(self, partitions: int = 1, **broker: Any) -> None:
        super().__init__(broker=BrokerSettings(**broker))
        assert self.ask("POST", "/v1/topics", {"name": "t", "partitions": partitions}).status == 201

    def produce(self, *values: str, **envelope: Any) -> None:
        for value in values:
            body = {"topic": "t", "value": value, "envelope": envelope}
            assert self.ask("POST", "/v1/produce", body).status == 200

    def consume(self, group: str = "g", owner: str = "a") -> KeptSink:
        return self.stream(f"/v1/consume?topic=t&group={group}&owner={owner}&lease_ms=60000")[1]

    def lines(self, sink: KeptSink) -> list[Any]:
        self.run()
        return [json.decode(line) for line in sink.taken().splitlines() if line]

    def settle(self, how: str, line: Any, **fields: Any) -> int:
        place = {"topic": "t", "group": "g", "owner": "a", "partition": line["partition"], "offset": line["offset"]}
        return self.reply("POST", f"/v1/{how}", place | fields).status

    def group(self, partition: int = 0) -> Any:
        (found,) = self.ok("GET", "/v1/groups?topic=t&group=g")["groups"]
        return found["partitions"][partition]


def test_a_group_says_how_it_stands() -> None:
    rig = Broker()
    rig.produce("0", "1", "2")
    assert rig.ok("GET", "/v1/groups?topic=t") == {"groups": []}
    lines = rig.lines(rig.consume())
    assert rig.settle("ack", lines[1]) == 204
    assert rig.settle("nack", lines[2], reason="no") == 204
    found = rig.group()
    assert (found["floor"], found["last_acked"], found["done"], found["lag"]) == (-1, 1, 1, 2)
    assert found["owners"] == ["a"]
    convert(rig.ok("GET", "/v1/groups"), GroupList)
    assert rig.ok("GET", "/v1/groups?topic=nope") == {"groups": []}


@pytest.mark.parametrize("later", [lambda _: None, Broker.restart], ids=["in memory", "after a restart"])
def test_a_group_says_how_old_its_oldest_open_message_is(later: Any) -> None:
    rig = Broker()
    rig.produce("0")
    sink = rig.consume()
    rig.settle("ack", rig.lines(sink)[0])
    assert rig.group()["oldest_ms"] is None
    rig.runtime.advance(3_600_000)
    rig.produce("1")
    rig.runtime.advance(500)
    rig.produce("2")
    rig.runtime.advance(500)
    later(rig)
    assert 1000 <= rig.group()["oldest_ms"] <= 2000  # a start may leave a second out


def test_a_group_is_put_elsewhere() -> None:
    rig = Broker()
    rig.produce("0", "1", "2")
    sink = rig.consume()
    for line in rig.lines(sink):
        rig.settle("ack", line)
    seek = {"topic": "t", "group": "g", "to": {"offset": 1}}
    assert rig.ask("POST", "/v1/groups/seek", seek).status == 409
    moved = rig.ok("POST", "/v1/groups/seek", seek | {"dry_run": True, "force": True})
    assert moved == {"moved": [{"partition": 0, "floor_before": 2, "floor_after": 0}]}
    assert rig.lines(sink) == []
    assert rig.ok("POST", "/v1/groups/seek", seek | {"force": True}) == moved
    assert [line["offset"] for line in rig.lines(sink)] == [1, 2]
    rig.ok("POST", "/v1/groups/seek", seek | {"force": True, "to": "latest"})
    rig.produce("3")
    assert [line["offset"] for line in rig.lines(sink)] == [3]
    rig.ok("POST", "/v1/groups/seek", seek | {"force": True, "to": {"timestamp": 0}})
    assert [line["offset"] for line in rig.lines(sink)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "changed",
    [
        {"to": None},
        {"to": "middle"},
        {"to": {}},
        {"to": {"offset": 1, "timestamp": 1}},
        {"to": {"offset": -1}},
        {"to": {"offset": 1, "extra": 1}},
        {"to": 5},
        {"partitions": [1]},
        {"partitions": []},
        {"group": " "},
        {"topic": "nope"},
    ],
)
def test_what_a_seek_cannot_mean(changed: dict[str, Any]) -> None:
    rig = Broker()
    status, body = rig.ask("POST", "/v1/groups/seek", {"topic": "t", "group": "g", "to": "latest"} | changed)
    assert (status, body["error"]) == (400, "INVALID_ARGUMENT")


def batch(rig: Broker, *messages: Any, **fields: Any) -> list[Any]:
    body = rig.ok("POST", "/v1/produce/batch", {"topic": "t", "messages": messages, **fields})
    assert (body["status"], body["topic"]) == ("produced", "t")
    results: list[Any] = body["results"]
    return results


def test_a_batch_is_stored_in_its_order_and_answers_places() -> None:
    rig = Broker(3)
    results = batch(rig, {"value": "a", "key": "user:1"}, {"value": "b", "envelope": {"partition_override": 2}})
    assert results == [
        {"status": "produced", "partition": 1, "offset": 0},
        {"status": "produced", "partition": 2, "offset": 1},
    ]


def test_a_key_twice_in_a_batch_is_a_duplicate() -> None:
    rig = Broker()
    keyed = {"value": "a", "envelope": {"idempotency_key": "k"}}
    for atomic, first in ((True, "produced"), (False, "duplicate")):
        statuses = [one["status"] for one in batch(rig, keyed, keyed, {"value": "b"}, atomic=atomic)]
        assert statuses == [first, "duplicate", "produced"]
    assert [one["status"] for one in batch(rig, keyed)] == ["duplicate"]


@pytest.mark.parametrize("atomic", [True, False])
def test_a_duplicate_has_the_place_of_the_stored_message(atomic: bool) -> None:
    rig = Broker(3)
    keyed = [
        {"value": "a", "key": "user:1", "envelope": {"idempotency_key": "k"}},
        {"value": "b", "envelope": {"idempotency_key": "l", "partition_override": 2}},
    ]
    first = batch(rig, {"value": "x"}, *keyed, keyed[0], atomic=atomic)
    assert first[1:] == [
        {"status": "produced", "partition": 1, "offset": 1},
        {"status": "produced", "partition": 2, "offset": 2},
        {"status": "duplicate", "partition": 1, "offset": 1},
    ]
    assert batch(rig, *keyed, atomic=atomic) == [
        {"status": "duplicate", "partition": 1, "offset": 1},
        {"status": "duplicate", "partition": 2, "offset": 2},
    ]


def test_an_atomic_batch_is_whole_or_nothing_and_another_is_not() -> None:
    rig = Broker()
    keyed = {"value": "a", "envelope": {"idempotency_key": "k"}}
    bad = {"value": "b", "envelope": {"partition_override": 7}}
    wrong = {"value": "c", "envelope": {"deadline": "soon"}}
    for one in (bad, wrong, {"value": ""}, {"value": "d", "envelope": {"target_topic": "nope"}}):
        assert rig.ask("POST", "/v1/produce/batch", {"topic": "t", "messages": [keyed, one]}).status == 400
    results = batch(rig, keyed, bad, wrong, {"value": "e"}, atomic=False)
    assert [one["status"] for one in results] == ["produced", "rejected", "rejected", "produced"]
    assert results[1]["error"] == {"error": "INVALID_ARGUMENT", "message": "partition_override out of range"}
    assert results[2]["error"] == {"error": "INVALID_ARGUMENT", "message": "invalid deadline"}
    assert [one.get("offset") for one in results] == [0, None, None, 1]


def test_an_atomic_batch_goes_to_one_topic() -> None:
    rig = Broker()
    rig.ok("POST", "/v1/topics", {"name": "u"})
    body = {"topic": "t", "messages": [{"value": "a"}, {"value": "b", "envelope": {"target_topic": "u"}}]}
    assert rig.ask("POST", "/v1/produce/batch", body).status == 400
    assert [one["offset"] for one in batch(rig, *body["messages"], atomic=False)] == [0, 0]


def test_the_registry_over_http() -> None:
    rig = Broker()
    assert rig.ask("POST", "/v1/idempotency/commit", KEY).status == 404
    begun = rig.ok("POST", "/v1/idempotency/begin", KEY)
    assert (begun["status"], begun["already_done"]) == ("PENDING", False)
    assert rig.ask("POST", "/v1/idempotency/begin", KEY | {"owner": "b"}).status == 409
    renewed = rig.ok("POST", "/v1/idempotency/renew", KEY | {"lease_ms": 90_000})
    assert renewed["lease_until_ms"] > begun["lease_until_ms"]
    assert rig.ask("POST", "/v1/idempotency/commit", KEY | {"result": "not base64!"}).status == 400
    assert rig.ok("POST", "/v1/idempotency/commit", KEY | {"result": "AP8="})["status"] == "COMMITTED"
    again = rig.ok("POST", "/v1/idempotency/begin", KEY | {"owner": "b"})
    assert again == {"status": "COMMITTED", "already_done": True, "result": "AP8="}
    entry = rig.ok("GET", "/v1/idempotency?topic=t&group=g&idempotency_key=k")
    assert (entry["status"], entry["result"], entry["last_error"]) == ("COMMITTED", "AP8=", "")
    assert rig.ask("GET", "/v1/idempotency?topic=t&group=g&idempotency_key=l").status == 404


def test_a_run_is_its_steps_and_how_they_stand() -> None:
    rig = Broker()
    assert rig.ask("GET", "/v1/runs/r").status == 404
    rig.produce("v", run_id="r", step_id="s1", tenant_id="x")
    rig.produce("v", run_id="r", step_id="s2", parent_step_id="s1", retry_policy={"max_attempts": 1})
    sink = rig.consume()
    lines = rig.lines(sink)
    assert rig.settle("ack", lines[0]) == 204
    assert rig.settle("nack", lines[1], reason="fatal") == 204
    rig.run()
    first, second = rig.ok("GET", "/v1/runs/r")["steps"]
    assert (first["step_id"], first["state"], first["offset"]) == ("s1", "done", 0)
    assert (second["parent_step_id"], second["state"], second["attempts"], second["last_error"]) == (
        "s1",
        "dead",
        1,
        "fatal",
    )
    assert [letter["topic"] for letter in second["dlq"]] == ["dlq.t"]
    assert [step["step_id"] for step in rig.ok("GET", "/v1/runs/r?tenant_id=x")["steps"]] == ["s1"]


def test_ids_are_stripped_wherever_they_stand() -> None:
    rig = Broker()
    rig.produce("v", run_id=" r ", tenant_id=" ta ", retry_policy={"max_attempts": 1})
    rig.settle("nack", rig.lines(rig.consume())[0])
    rig.run()
    found = rig.ok("GET", "/v1/runs/%20r?tenant_id=+ta")
    assert (found["run_id"], len(found["steps"])) == ("r", 1)
    wanted = {"topic": " t ", "filter": {"run_id": " r", "tenant_id": "ta "}, "group": " g", "dry_run": True}
    assert rig.ok("POST", "/v1/dlq/redrive", wanted) == {"matched": 1}


def test_what_is_counted() -> None:
    """inv1: 75. inv1: 76."""
    rig = Broker(2)
    rig.produce("a", "b", partition_override=1, retry_policy={"max_attempts": 1})
    sink = rig.consume()
    lines = rig.lines(sink)
    page = rig.reply("GET", "/metrics").body.decode()
    assert 'inflight_messages{topic="t",group="g",partition="1"} 2\n' in page
    assert 'consumer_lag{topic="t",group="g",partition="0"} 0\n' in page
    assert "dlq_messages_total{" not in page
    assert "driftq_streams 1\n" in page
    rig.settle("ack", lines[0])
    rig.settle("nack", lines[1])
    rig.run()
    page = rig.reply("GET", "/metrics").body.decode()
    assert 'consumer_lag{topic="t",group="g",partition="1"} 0\n' in page
    assert 'dlq_messages_total{topic="t",reason="max_attempts_reached"} 1\n' in page


def test_a_topic_of_the_broker_is_read_through_the_other_api() -> None:
    rig = Broker(2)
    rig.produce("a", partition_override=1)
    (record,) = rig.diff("@t", include_tags=True)["records"]
    assert (record["$seq"], record["$tag"]) == (1, "p1")
    assert record["data"] == {"key": "", "value": "a", "envelope": {"partition_override": 1}}
    assert [row["topic"] for row in rig.ok("GET", "/v0/topics")["topics"]] == ["@t"]
    assert rig.ok("GET", "/v0/topics?v1=false")["topics"] == []
    assert rig.code("POST", "/v0/topics/@t", {"records": [{"data": 1}]}) == (409, "read_only")
    assert rig.code("PUT", "/v0/topics/@t", {}) == (409, "read_only")
    assert rig.code("PATCH", "/v0/topics/@t", {"ttl_ms": 1}) == (409, "read_only")
    assert rig.code("DELETE", "/v0/topics/@t") == (409, "read_only")
    rig.ok("PUT", "/v0/topics/own", {})
    rig.ok("PUT", "/v0/routers/out", {"source": "@t", "dest": "own"})


def test_v1_colon_is_an_ordinary_beginning_of_a_topic_name() -> None:
    rig = Broker()
    assert rig.reply("PUT", "/v0/topics/v1:t", {}).status == 201
    rig.ok("POST", "/v0/topics/v1:t", {"records": [{"data": 1}]})
    rig.produce("message")
    assert [record["data"] for record in rig.diff("v1:t")["records"]] == [1]
    assert [row["topic"] for row in rig.ok("GET", "/v0/topics")["topics"]] == ["@t", "v1:t"]
    assert [row["topic"] for row in rig.ok("GET", "/v0/topics?v1=false")["topics"]] == ["v1:t"]


def test_a_broker_name_that_v0_cannot_spell_is_percent_encoded() -> None:
    rig = Broker()
    assert rig.reply("POST", "/v1/topics", {"name": "a b"}).status == 201
    names = [row["topic"] for row in rig.ok("GET", "/v0/topics")["topics"]]
    assert names == ["@a%20b", "@t"]
    for path in ("/v0/topics/@a%2520b", "/v0/topics/@a%20b", "/v0/topics/%40a%20b"):
        assert rig.ok("GET", path)["topic"] == "@a%20b"
        assert rig.code("DELETE", path) == (409, "read_only")


def test_no_write_makes_a_queue_whose_dead_letters_are_the_brokers() -> None:
    """As with a PUT: a config that comes with a write, or over a socket, must not lead into a topic of the broker."""
    rig = Broker()
    config = {"type": "queue", "max_deliveries": 1, "dead_letter": "@t"}
    write = {"records": [{"data": 1}], "config": config}
    assert rig.code("POST", "/v0/topics/q", write) == (409, "read_only")
    upgrade, sink = rig.socket()
    upgrade.source.received(json.encode({"op": "publish", "topic": "q", **write}).decode())
    rig.run()
    assert [message["code"] for message in sink.messages()] == ["read_only"]
    assert rig.code("GET", "/v0/topics/q") == (404, "topic_not_found")
    rig.ok("PUT", "/v0/topics/q", {"type": "queue"})
    assert rig.ok("POST", "/v0/topics/q", write)["created"] is False
    deleted = rig.send("DELETE", "/v0/topics/q")
    late = rig.send("POST", "/v0/topics/q", write)
    rig.run()
    assert [decoded_reply(reply).status for reply in map(settled, (deleted, late)) if reply is not None] == [200, 409]
    assert rig.ok("GET", "/v0/topics/@t")["head_seq"] == 0


def test_a_worker_says_when_a_message_is_tried_again() -> None:
    rig = Broker()
    rig.produce("v", retry_policy={"backoff_ms": 10})
    sink = rig.consume()
    (first,) = rig.lines(sink)
    assert rig.settle("nack", first, delay_ms=5000) == 204
    rig.runtime.advance(4900)
    assert rig.lines(sink) == []
    rig.runtime.advance(500)
    (again,) = rig.lines(sink)
    assert again["attempts"] == 2


def test_a_worker_says_that_a_message_is_not_tried_again_also_when_it_waits() -> None:
    rig = Broker()
    rig.produce("a", "b", run_id="r")
    lines = rig.lines(rig.consume())
    assert rig.settle("nack", lines[0], reason="not mine", dead_letter=True) == 204
    assert rig.settle("nack", lines[1], delay_ms=60_000) == 204
    assert rig.settle("nack", lines[1], reason="nor this", dead_letter=True) == 204
    letters = rig.lines(rig.stream("/v1/consume?topic=dlq.t&group=g&owner=a")[1])
    assert [line["envelope"]["dlq"]["last_error"] for line in letters] == ["not mine", "nor this"]
    assert rig.group()["lag"] == 0
    page = rig.reply("GET", "/metrics").body.decode()
    assert 'dlq_messages_total{topic="t",reason="rejected"} 2\n' in page


@pytest.mark.parametrize("delay_ms", [-1, 1.5, "1", True])
def test_what_a_delay_cannot_be(delay_ms: Any) -> None:
    rig = Broker()
    rig.produce("v")
    (line,) = rig.lines(rig.consume())
    assert rig.settle("nack", line, delay_ms=delay_ms) == 400
    assert rig.settle("ack", line) == 204


def test_a_nack_in_the_query_has_the_same_words() -> None:
    rig = Broker()
    rig.produce("v")
    rig.lines(rig.consume())
    place = "topic=t&group=g&owner=a&partition=0&offset=0"
    assert rig.reply("POST", f"/v1/nack?{place}&delay_ms=x").status == 400
    assert rig.reply("POST", f"/v1/nack?{place}&dead_letter=true&reason=no").status == 204
    rig.run()
    assert rig.ok("GET", "/v1/topics")["topics"] == ["dlq.t", "t"]


def test_letters_are_named_by_their_offsets() -> None:
    rig = Broker()
    rig.produce("a", "b", "c")
    for line in rig.lines(rig.consume()):
        assert rig.settle("nack", line, dead_letter=True) == 204
    rig.run()
    asked = {"topic": "t", "offsets": [2, 0, 2, 7]}
    assert rig.ok("POST", "/v1/dlq/redrive", asked | {"dry_run": True}) == {"matched": 2}
    assert rig.ask("POST", "/v1/dlq/redrive", asked).status == 202
    rig.run()
    assert rig.ok("POST", "/v1/dlq/redrive", {"topic": "t", "dry_run": True}) == {"matched": 1}
    for offsets in ([], [-1], [0] * 10_001):
        assert rig.ask("POST", "/v1/dlq/redrive", {"topic": "t", "offsets": offsets}).status == 400


def test_a_run_tells_how_often_a_step_was_delivered_after_it_is_done_and_after_a_restart() -> None:
    rig = Broker()
    rig.produce("once", "thrice", run_id="r")
    sink = rig.consume()
    first, second = rig.lines(sink)
    rig.settle("ack", first)
    for _ in range(2):
        rig.settle("nack", second, delay_ms=0)
        (second,) = rig.lines(sink)
    rig.settle("ack", second)
    for _ in range(2):
        assert [(step["state"], step["attempts"]) for step in rig.ok("GET", "/v1/runs/r")["steps"]] == [
            ("done", 1),
            ("done", 3),
        ]
        rig.restart()


def test_what_is_old_and_done_goes_and_readers_of_the_other_api_are_told() -> None:
    rig = Broker(v1_retention_ms=1000)
    rig.produce("done", "open")
    first, _ = rig.lines(rig.consume())
    rig.settle("ack", first)
    rig.runtime.advance(1300)
    page = rig.diff("@t")
    assert [record["$seq"] for record in page["records"]] == [2]
    assert page["tombstone"]["reason"] == "ttl"
    assert (rig.group()["lag"], rig.group()["done"]) == (1, 0)
    assert [line["offset"] for line in rig.lines(rig.consume("later"))] == [1]
