"""Streams, leases, acks and nacks on a whole server, to the millisecond."""

from typing import Any

import pytest
from msgspec import json

from tests.unit.http.v1.client import Client, Consumer, message
from tests.unit.http.wire import Peer, get

TICK_MS = 250
"""How late the end of a lease or of a wait may be seen."""


@pytest.fixture
def client() -> Client:
    client = Client()
    client.create()
    return client


def until_next(client: Client, consumer: Consumer, most_ms: int = 10_000) -> tuple[int, dict[str, Any]]:
    """How long the next message takes to come, and what it is."""
    for waited in range(most_ms):
        if got := consumer.take():
            (found,) = got
            return waited, found
        client.advance(1)
    raise AssertionError("nothing came")


# --- streams ------------------------------------------------------------------------------------------------------


def test_the_head_of_a_stream_is_there_before_anything_else(client: Client) -> None:
    """inv1: 27"""
    peer = Peer(client.app.handle)
    peer.send(get("/v1/consume?topic=t&group=g&owner=o"))
    head, _, rest = peer.received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"content-type: application/x-ndjson; charset=utf-8" in head.lower()
    assert rest == b""


def test_a_line_has_six_keys_and_what_else_there_is(client: Client) -> None:
    """inv1: 28, 29"""
    value = "a\u0085b\u2028c\nd"
    client.produce(value)
    client.produce("v", run_id="r")
    consumer = client.consume()
    lines = consumer.sink.taken().split(b"\n")
    assert len(lines) == 3
    assert all(line.isascii() for line in lines)
    first, second = (json.decode(line) for line in lines[:2])
    six = {"partition": 0, "offset": 0, "attempts": 1, "key": "", "value": value, "last_error": ""}
    assert first == six
    assert second == six | {"offset": 1, "value": "v", "envelope": {"run_id": "r"}}


def test_every_group_gets_everything_and_each_message_goes_to_one_of_its_streams(client: Client) -> None:
    """inv1: 30, 31"""
    client.produce(*"0123")
    alone = client.consume(group="h")
    assert alone.values() == ["0", "1", "2", "3"]
    two = [client.consume(owner="a", credit=2), client.consume(owner="b", credit=10)]
    client.produce(*"456")
    parts = [consumer.values() for consumer in two]
    assert all(parts)
    assert sorted(parts[0] + parts[1]) == list("0123456")
    assert alone.values() == ["4", "5", "6"]


def test_idle_streams_take_turns(client: Client) -> None:
    """inv1: 32"""
    streams = {owner: client.consume(owner=owner) for owner in "ab"}
    turns = ""
    for offset in range(8):
        client.produce("v")
        for owner, consumer in streams.items():
            if consumer.take():
                turns += owner
                consumer.ack(offset)
    assert turns == "abababab"


@pytest.mark.parametrize("limit", [1, 5])
def test_so_many_messages_of_a_partition_are_out_and_an_ack_makes_room_for_one(limit: int) -> None:
    """inv1: 33"""
    client = Client(in_flight_max=limit, stream_credit=0)
    client.create("t", 2)
    for number in range(30):
        client.produce("v", partition_override=number % 2)
    _, sink = client.stream("/v1/consume?topic=t&group=g&owner=a&lease_ms=60000")
    got = [json.decode(line) for line in sink.taken().splitlines()]
    assert sorted(item["partition"] for item in got) == [0] * limit + [1] * limit
    done = {"topic": "t", "group": "g", "owner": "a", "partition": 1, "offset": 1}
    assert client.ask("POST", "/v1/ack", done).status == 204
    (line,) = sink.taken().splitlines()
    assert (json.decode(line)["partition"], json.decode(line)["offset"]) == (1, 2 * limit + 1)


def test_first_deliveries_of_a_partition_ascend(client: Client) -> None:
    """inv1: 34"""
    client.create("p", 3)
    for number in range(1000):
        client.produce("v", topic="p", key=str(number))
    consumer = client.consume("p", credit=10)
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    while got := consumer.take():
        for item in reversed(got):
            consumer.ack(item["offset"], item["partition"])
        for item in got:
            seen[item["partition"]].append(item["offset"])
    assert sorted(offset for row in seen.values() for offset in row) == list(range(1000))
    assert all(row == sorted(row) for row in seen.values())


def test_streams_of_one_owner_stand_side_by_side(client: Client) -> None:
    """inv1: 35"""
    one, two = client.consume(), client.consume()
    client.produce("0", "1", "2", "3")
    first, second = one.offsets(), two.offsets()
    assert (first, second) == ([0, 2], [1, 3])
    for offset in first:
        two.ack(offset)
    for offset in second:
        one.ack(offset)
    assert client.figure("consumer_lag", topic="t", group="g", partition="0") == 0


def test_what_a_stream_was_given_stays_its_owners_when_it_closes(client: Client) -> None:
    """inv1: 36, 37"""
    client.produce("0", "1")
    leaver = client.consume()
    assert leaver.offsets() == [0, 1]
    leaver.close()
    stayer = client.consume(owner="b")
    client.advance(5000)
    assert stayer.offsets() == []
    leaver.ack(0)
    client.advance(55_000 + TICK_MS)
    assert stayer.offsets() == [1]


@pytest.mark.parametrize("heartbeat_ms", [0, 20_000])
def test_an_idle_stream_is_never_closed(heartbeat_ms: int) -> None:
    """inv1: 38"""
    client = Client(heartbeat_ms=heartbeat_ms)
    client.create()
    consumer = client.consume()
    client.advance(90_000)
    assert consumer.sink.taken() == (b"\n" * 4 if heartbeat_ms else b"")
    assert not consumer.sink.ended
    client.produce("v")
    assert consumer.values() == ["v"]


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("topic=no&group=g&owner=o", "topic does not exist"),
        ("topic=t&group=g&owner=o&lease_ms=-1", "invalid lease_ms"),
        ("topic=t&group=g&owner=o&lease_ms=x", "invalid lease_ms"),
    ],
)
def test_what_is_refused_is_no_stream(client: Client, query: str, why: str) -> None:
    """inv1: 39, 40"""
    assert message(client.ask("GET", f"/v1/consume?{query}")) == (400, why)


def test_a_lease_that_nobody_asked_for_is_two_seconds(client: Client) -> None:
    """inv1: 40"""
    client.produce("v")
    consumer = client.consume(lease_ms=0)
    assert consumer.one()["attempts"] == 1
    waited, again = until_next(client, consumer)
    assert again["attempts"] == 2
    assert 2000 <= waited <= 2000 + TICK_MS + 1


# --- acks ---------------------------------------------------------------------------------------------------------


def test_only_the_owner_may_ack_and_whoever_comes_after_him(client: Client) -> None:
    """inv1: 41, 42"""
    owner, other = client.consume(owner="a"), client.consume(owner="b")
    client.produce("0", "1")
    assert (owner.offsets(), other.offsets()) == ([0], [1])
    assert message(other.settle("ack", 0)) == (409, "not owner")
    other.ack(1)
    client.advance(5000)
    assert (owner.offsets(), other.offsets()) == ([], [])  # it is still leased to its owner
    owner.ack(0)
    before = client.figure("driftq_wal_frames_total")
    for consumer in (owner, other, client.consume(owner="c")):
        consumer.ack(0)
    assert before is not None
    assert client.figure("driftq_wal_frames_total") == before
    assert client.figure("consumer_lag", topic="t", group="g", partition="0") == 0


def test_an_ack_of_what_was_not_delivered_changes_nothing(client: Client) -> None:
    """inv1: 43"""
    client.produce("0", "1")
    consumer = client.consume(credit=1)
    assert consumer.offsets() == [0]
    assert message(consumer.settle("ack", 1)) == (400, "message is not in-flight")
    consumer.ack(0)
    assert consumer.offsets() == [1]


def test_an_ack_without_offset_is_not_one_of_the_first_message(client: Client) -> None:
    """inv1: 44"""
    client.produce("0")
    consumer = client.consume(lease_ms=1000)
    assert consumer.offsets() == [0]
    body = {"topic": "t", "group": "g", "owner": "a", "partition": 0}
    assert message(client.ask("POST", "/v1/ack", body)) == (400, "partition and offset are required")
    client.advance(1000 + TICK_MS)
    assert consumer.offsets() == [0]


def test_a_redelivery_has_another_owner(client: Client) -> None:
    """inv1: 45"""
    client.produce("0")
    first = client.consume(owner="a", lease_ms=1000)
    assert first.offsets() == [0]
    first.close()
    second = client.consume(owner="b")
    client.advance(1000 + TICK_MS)
    assert second.offsets() == [0]
    assert message(first.settle("ack", 0)) == (409, "not owner")
    second.ack(0)


@pytest.mark.parametrize("envelope", [{}, {"idempotency_key": "k"}])
def test_a_late_ack_counts_while_nobody_else_has_the_message(client: Client, envelope: dict[str, Any]) -> None:
    """inv1: 46"""
    client.produce("0", **envelope)
    consumer = client.consume(lease_ms=1000)
    assert consumer.offsets() == [0]
    consumer.close()
    client.advance(5000)
    consumer.ack(0)
    assert client.consume().offsets() == []


# --- failures -----------------------------------------------------------------------------------------------------


def test_a_nack_brings_a_message_back_at_once_with_its_reason(client: Client) -> None:
    """inv1: 47, 48"""
    client.produce("0", "1")
    consumer = client.consume()
    assert consumer.offsets() == [0, 1]
    consumer.nack(0, " why ")
    assert (found := consumer.one())["last_error"] == "why"
    assert found["attempts"] == 2
    consumer.nack(1, "  ")
    assert (found := consumer.one())["last_error"] == "nack"
    consumer.nack(0, "a")
    assert until_next(client, consumer)[1]["last_error"] == "a"
    consumer.nack(0, "b")
    assert until_next(client, consumer)[1]["last_error"] == "b"


def test_a_lease_that_ends_is_an_error_unless_there_was_one(client: Client) -> None:
    """inv1: 49"""
    client.produce("0")
    consumer = client.consume(lease_ms=1000)
    assert consumer.one()["last_error"] == ""
    assert until_next(client, consumer)[1]["last_error"] == "ack_timeout"
    consumer.nack(0, "x")
    assert until_next(client, consumer)[1]["last_error"] == "x"
    assert until_next(client, consumer)[1]["last_error"] == "x"


def test_backoff_doubles_up_to_its_cap(client: Client) -> None:
    """inv1: 50"""
    client.produce("0", retry_policy={"backoff_ms": 250, "max_backoff_ms": 1000})
    consumer = client.consume()
    consumer.take()
    for delay in (250, 500, 1000, 1000):
        consumer.nack(0)
        waited, _ = until_next(client, consumer)
        assert delay <= waited <= delay + TICK_MS + 1


@pytest.mark.parametrize("most", [1, 3])
def test_a_message_is_delivered_so_often_and_is_then_one_dead_letter(client: Client, most: int) -> None:
    """inv1: 51"""
    client.produce("v", retry_policy={"max_attempts": most})
    consumer = client.consume(lease_ms=1000)
    deliveries = 0
    for number in range(10):
        deliveries += len(got := consumer.take())
        if got and number % 2:
            consumer.nack(0)
        client.advance(2000)
    assert deliveries == most
    assert [item["value"] for item in client.all("dlq.t")] == ["v"]


@pytest.mark.parametrize("life", ["restart", "crash", "kill"])
def test_what_was_acked_stays_away_and_nothing_else_does(client: Client, life: str) -> None:
    """inv1: 52, 53"""
    client.create("u")
    client.produce(*"01234")
    client.produce(*"012", topic="u")
    consumer, other = client.consume(), client.consume("u")
    consumer.take()
    other.take()
    consumer.ack(1)
    consumer.ack(2)
    other.ack(1)
    other.ack(0)
    getattr(client, life)()
    assert client.consume().offsets() == [0, 3, 4]
    assert client.consume("u").offsets() == [2]


@pytest.mark.parametrize("life", ["restart", "crash", "kill"])
def test_a_dead_letter_leaves_what_is_below_it_open(client: Client, life: str) -> None:
    """inv1: 54"""
    client.produce(*"01234")
    client.produce("5", retry_policy={"max_attempts": 1})
    consumer = client.consume()
    consumer.take()
    for offset in (0, 1, 2):
        consumer.ack(offset)
    consumer.nack(5, "boom")
    client.run()
    getattr(client, life)()
    assert client.consume().offsets() == [3, 4]
    assert [item["value"] for item in client.all("dlq.t")] == ["5"]


@pytest.mark.parametrize("life", ["run", "crash"])
def test_holes_are_never_more_than_may_be_in_flight(life: str) -> None:
    """inv1: 55"""
    client = Client(in_flight_max=4)
    client.create()
    client.produce(*map(str, range(60)))
    seen = []
    for turn in range(4):
        consumer = client.consume(owner=str(turn), lease_ms=500)
        for _ in range(5):
            consumer.ack(max(consumer.offsets()))
            (row,) = client.server.broker.groups("t", "g")[0].partitions
            seen.append(row.last_acked + 1 - row.done)
        consumer.close()
        getattr(client, life)()
        client.advance(1000)
    assert 0 < max(seen) <= 4


def test_a_message_that_is_always_refused_does_not_come_all_the_time(client: Client) -> None:
    """inv1: 78"""
    client.produce("v")
    consumer = client.consume()
    deliveries = 0
    for _ in range(5000):
        while deliveries <= 20 and (got := consumer.take()):
            deliveries += len(got)
            consumer.nack(0, "no")
        client.advance(1)
    assert 2 <= deliveries <= 20
