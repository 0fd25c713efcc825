"""Dead letters, producers that are too fast, and what is counted, on a whole server."""

import pytest
from msgspec import json

from tests.unit.http.v1.client import Client, Consumer, message


@pytest.fixture
def client() -> Client:
    client = Client()
    client.create()
    return client


def fail(client: Client, consumer: Consumer, count: int) -> None:
    """Refuse so many messages, each of which may fail once."""
    for _ in range(count):
        item = consumer.take()[0]
        consumer.nack(item["offset"], "boom", item["partition"])
        client.run()


def test_a_dead_letter_is_the_message_and_where_it_comes_from(client: Client) -> None:
    """inv1: 56, 57"""
    client.create("p", 3)
    client.produce("first", topic="p")
    client.produce(
        "v",
        topic="p",
        key="c",
        tenant_id="x",
        idempotency_key="k",
        run_id="r",
        target_topic="p",
        partition_override=1,
        retry_policy={"max_attempts": 1},
    )
    consumer = client.consume("p", "workers")
    consumer.take()
    consumer.nack(1, "boom", partition=1)
    client.run()
    assert client.create("dlq.p", 9) == 3
    assert client.topics() == ["dlq.p", "p", "t"]
    (letter,) = client.all("dlq.p")
    note = letter["envelope"].pop("dlq")
    assert letter == {
        "partition": 2,
        "offset": 0,
        "attempts": 1,
        "key": "c",
        "value": "v",
        "last_error": "",
        "envelope": {"tenant_id": "x", "idempotency_key": "k", "run_id": "r"},
    }
    assert note == {
        "original_topic": "p",
        "original_partition": 1,
        "original_offset": 1,
        "attempts": 1,
        "last_error": "boom",
        "routed_at_ms": client.clock.wall_ms(),
        "group": "workers",
    }


def test_dead_letters_are_never_too_many() -> None:
    """inv1: 58"""
    client = Client(partition_msgs_max=2, partition_bytes_max=20)
    client.create()
    consumer = client.consume()
    for number in range(5):
        client.produce(str(number), retry_policy={"max_attempts": 1})
        fail(client, consumer, 1)
    assert [item["value"] for item in client.all("dlq.t")] == list("01234")
    assert client.figure("inflight_messages", topic="t", group="g", partition="0") == 0
    client.produce("next")
    assert consumer.values() == ["next"]


def test_the_third_open_message_is_one_too_many_with_the_limits_of_development() -> None:
    """inv1: 59, 61"""
    client = Client(dev=True)
    client.create()
    client.produce("0", "1")
    reply = client.reply("POST", "/v1/produce", {"topic": "t", "value": "2"})
    assert (reply.status, dict(reply.headers)[b"retry-after"]) == (429, b"1")
    body = json.decode(reply.body)
    assert (body["error"], body["reason"], body["retry_after_ms"]) == ("RESOURCE_EXHAUSTED", "overloaded", 1000)
    consumer = client.consume()
    assert consumer.offsets() == [0, 1]
    consumer.ack(1)
    client.produce("2")
    assert client.offer("3").status == 429


def test_bytes_of_key_and_value_are_fewer_than_the_limit() -> None:
    """inv1: 60"""
    client = Client(dev=True)
    client.create("t", 2)
    assert client.offer("é" * 9, key="k", partition_override=0).status == 200
    status, why = message(client.offer("é" * 9, key="kk", partition_override=1))
    assert (status, why) == (429, "producer overload: partition_buffer_bytes_full")


def test_a_group_that_comes_late_holds_no_producer_up() -> None:
    """inv1: 62"""
    client = Client(partition_msgs_max=5)
    client.create()
    live = client.consume(group="live")
    for number in range(20):
        client.produce(str(number))
        live.ack(live.one()["offset"])
    late = client.consume(group="late")
    late.ack(late.take()[0]["offset"])
    for number in range(4):
        client.produce(str(number))
    live.take()
    client.produce("last")
    assert client.offer("too many").status == 429


def test_lag_is_what_is_stored_and_not_done(client: Client) -> None:
    """inv1: 75"""
    client.create("p", 2)
    for number in range(7):
        client.produce("v", topic="p", partition_override=number % 2)
    one, two = client.consume("p", "one"), client.consume("p", "two", credit=1)

    def figures(name: str) -> list[float | None]:
        return [
            client.figure(name, topic="p", group=group, partition=part) for group in ("one", "two") for part in "01"
        ]

    got = one.take()
    (held,) = two.take()
    assert figures("consumer_lag") == [4, 3, 4, 3]
    assert figures("inflight_messages") == [4, 3, 1, 0]
    one.ack(0, 0)
    one.nack(1, "x", 1)
    one.nack(1, "x", 1)  # now it waits
    two.ack(held["offset"], held["partition"])
    assert figures("consumer_lag") == [3, 3, 3, 3]
    assert figures("inflight_messages")[:2] == [3, 3]
    for item in got:
        one.ack(item["offset"], item["partition"])
    assert figures("consumer_lag")[:2] == figures("inflight_messages")[:2] == [0, 0]
    client.crash()
    assert figures("consumer_lag") == [0, 0, 3, 3]


def test_refusals_and_dead_letters_are_counted_one_by_one() -> None:
    """inv1: 76"""
    client = Client(dev=True)
    client.create()
    full, large = "partition_buffer_full", "partition_buffer_bytes_full"

    def figures() -> list[float | None]:
        return [
            client.figure("produce_rejected_total", reason=full),
            client.figure("produce_rejected_total", reason=large),
            client.figure("dlq_messages_total", topic="t", reason="max_attempts_reached"),
        ]

    assert figures() == [None, None, None]
    client.offer("x" * 20)
    assert figures() == [None, 1, None]
    client.produce("0", "1", retry_policy={"max_attempts": 1})
    client.offer("2")
    client.offer("2")
    assert figures() == [2, 1, None]
    consumer = client.consume()
    consumer.take()
    consumer.nack(0)
    client.run()
    assert figures() == [2, 1, 1]
    consumer.nack(1)
    client.run()
    assert figures() == [2, 1, 2]
