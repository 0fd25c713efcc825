"""Messages with an idempotency key on a whole server: stored once, done once."""

import pytest

from driftq.features.broker.idempotency.consumed_keys import LeaseHeldError
from driftq.http.answer import Answer
from driftq.model.message import Envelope, Message
from driftq.testing import SimDisk
from driftq.testing.server_rig import settled
from tests.unit.http.v1.client import Client, message

MINUTE_MS = 60_000
KEYED = Message("v", "", Envelope(idempotency_key="k"))


@pytest.fixture
def client() -> Client:
    client = Client()
    client.create()
    return client


def values(client: Client, topic: str = "t") -> list[str]:
    return [item["value"] for item in client.all(topic)]


def test_a_key_is_one_message_per_tenant_and_topic(client: Client) -> None:
    """inv1: 63"""
    client.create("u")
    client.produce("first", "second", idempotency_key="k")
    assert values(client) == ["first"]
    client.produce("other tenant", idempotency_key="k", tenant_id="x")
    client.produce("other topic", topic="u", idempotency_key="k")
    assert (values(client), values(client, "u")) == (["first", "other tenant"], ["other topic"])


def test_a_produce_that_failed_may_come_again_with_its_key(client: Client) -> None:
    """inv1: 64"""
    assert client.offer(topic="later", idempotency_key="k").status == 400
    client.create("later")
    client.produce("v", topic="later", idempotency_key="k")
    assert values(client, "later") == ["v"]


def test_a_repetition_is_answered_while_there_is_no_room() -> None:
    """inv1: 65"""
    client = Client(dev=True)
    client.create()
    client.produce("0", idempotency_key="k")
    client.produce("1")
    assert client.offer("2", idempotency_key="new").status == 429
    client.produce("0", idempotency_key="k")
    assert values(client) == ["0", "1"]


def test_a_produce_that_was_never_answered_is_stored_once_when_it_comes_again() -> None:
    """inv1: 66"""
    images: list[SimDisk] = []

    def called(*_: object) -> None:
        if answer is None or settled(answer) is None:
            images.append(disk.fork())

    answer: Answer | None = None
    disk = SimDisk(on_call=called)
    client = Client(disk=disk)
    client.create()
    images.clear()
    answer = client.send("POST", "/v1/produce", {"topic": "t", "value": "v", "envelope": {"idempotency_key": "k"}})
    client.run()
    assert settled(answer) is not None
    assert values(Client(disk=images[-1].fork())) == ["v"], "the last image is one with the message and no answer"
    for image in images:
        again = Client(disk=image)
        again.produce("v", idempotency_key="k")
        assert values(again) == ["v"]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_key_is_new_again_behind_its_window(client: Client, *, restarts: bool) -> None:
    """inv1: 67"""
    client.produce("v", idempotency_key="k")
    consumer = client.consume()
    consumer.ack(consumer.one()["offset"])
    client.advance(6 * MINUTE_MS)
    if restarts:
        client.restart()
        consumer = client.consume()
    client.produce("too early", idempotency_key="k")
    client.advance(5 * MINUTE_MS)
    client.produce("again", idempotency_key="k")
    assert consumer.values() == ["again"]


@pytest.mark.parametrize("life", ["restart", "crash"])
def test_a_message_whose_work_is_done_is_not_delivered_again(client: Client, life: str) -> None:
    """inv1: 68"""
    client.produce("v", idempotency_key="k")
    client.produce("w", idempotency_key="other")
    consumer = client.consume(lease_ms=1000)
    assert consumer.offsets() == [0, 1]
    registry = client.server.registry
    assert registry.begin("t", "g", KEYED, "a", 1000).already_done is False
    done = registry.mark_success("t", "g", KEYED, "a", b"result")
    client.run()
    done.result()
    client.advance(2000)
    assert consumer.offsets() == [1]
    getattr(client, life)()
    assert client.consume().offsets() == [1]


@pytest.mark.parametrize("life", ["restart", "crash"])
def test_nobody_begins_what_another_holds_and_a_restart_frees_it(client: Client, life: str) -> None:
    """inv1: 69"""
    client.server.registry.begin("t", "g", KEYED, "a", 600_000)
    with pytest.raises(LeaseHeldError, match="idempotency: lease held by another worker"):
        client.server.registry.begin("t", "g", KEYED, "b", 1000)
    getattr(client, life)()
    assert client.server.registry.begin("t", "g", KEYED, "b", 1000).already_done is False


def test_a_keyed_message_takes_any_lease(client: Client) -> None:
    """inv1: 70"""
    client.produce("v", idempotency_key="k")
    consumer = client.consume(lease_ms=100)
    assert consumer.values() == ["v"]
    client.advance(351)
    assert consumer.one()["attempts"] == 2
    consumer.ack(0)


def test_an_ack_of_another_owner_of_the_key_is_refused(client: Client) -> None:
    client.produce("v", idempotency_key="k")
    consumer = client.consume(lease_ms=1000)
    assert consumer.offsets() == [0]
    consumer.close()
    client.advance(1000)
    client.server.registry.begin("t", "g", KEYED, "b", 1000)
    assert message(consumer.settle("ack", 0)) == (409, "not owner")
