"""The SDK's broker client against a real server."""

import asyncio

import pytest

from driftq.client import (
    AsyncClient,
    BadRequestError,
    Client,
    ConflictError,
    Envelope,
    NewMessage,
    NotFoundError,
    RedriveFilter,
    RetryPolicy,
    SeekTo,
    StoredMessage,
)
from tests.acceptance.waiting import until


def test_a_message_is_produced_delivered_and_acked(client: Client) -> None:
    broker = client.broker
    assert broker.create_topic("orders", 3).partitions == 3
    assert "orders" in broker.topics()
    envelope = Envelope(run_id="r1", step_id="s1", tenant_id="t")
    broker.produce("orders", {"n": 1}, key="user:1", envelope=envelope)
    with broker.consume("orders", "g", lease_ms=30_000) as stream:
        got = next(stream)
        assert (got.topic, got.group, got.partition, got.attempts, got.json()) == ("orders", "g", 1, 1, {"n": 1})
        assert (got.envelope.run_id, got.envelope.tenant_id) == ("r1", "t")
        assert broker.extend(got, lease_ms=60_000).deadline_ms > 0
        broker.ack(got)
        broker.ack(got)
    (group,) = broker.groups("orders", "g")
    assert sum(row.lag for row in group.partitions) == 0
    (step,) = broker.runs("r1").steps
    assert (step.step_id, step.state) == ("s1", "done")


def test_a_failed_message_comes_again_and_then_becomes_a_dead_letter(client: Client) -> None:
    broker = client.broker
    broker.create_topic("fails")
    broker.produce("fails", "poison", envelope=Envelope(retry_policy=RetryPolicy(max_attempts=2)))
    broker.produce("fails", "at once")
    assert list(broker.dlq("fails")) == []
    with broker.consume("fails", "g", lease_ms=30_000) as stream:
        first, second = next(stream), next(stream)
        broker.nack(second, "no way", dead_letter=True)
        broker.nack(first, "first try", delay_ms=1)
        again = next(stream)
        assert (again.value, again.attempts, again.last_error) == ("poison", 2, "first try")
        broker.nack(again, "second try")
        letters = until(
            lambda: [one for one in broker.dlq("fails") if isinstance(one, StoredMessage)],
            lambda found: len(found) == 2,
        )
    notes = {one.message.value: one.message.envelope.dlq for one in letters if one.message.envelope is not None}
    assert {value: note.last_error for value, note in notes.items() if note is not None} == {
        "at once": "no way",
        "poison": "second try",
    }
    some = RedriveFilter(reason_contains="no way")
    assert broker.redrive("fails", filter=some, dry_run=True).matched == 1
    asked = broker.redrive("fails", filter=some)
    job = until(lambda: broker.redrive_job(asked.job_id), lambda job: job.state == "done")
    assert (job.moved, job.failed) == (1, 0)
    with pytest.raises(NotFoundError):
        broker.cancel_redrive("nobody")


def test_a_group_can_be_put_elsewhere(client: Client) -> None:
    broker = client.broker
    broker.create_topic("seek")
    broker.produce_batch("seek", [NewMessage(n) for n in range(5)], keyed=False)
    with broker.consume("seek", "g", lease_ms=30_000) as stream:
        for _ in range(5):
            broker.ack(next(stream))
    until(lambda: broker.groups("seek", "g")[0].streams, lambda streams: streams == 0)
    (moved,) = broker.seek("seek", "g", SeekTo(offset=3))
    assert (moved.floor_before, moved.floor_after) == (4, 2)
    with broker.consume("seek", "g") as stream:
        assert next(stream).offset == 3
        with pytest.raises(ConflictError):
            broker.seek("seek", "g", "earliest")
    stored = [one.offset for one in broker.messages("seek", 2) if isinstance(one, StoredMessage)]
    assert stored == [2, 3, 4]


def test_a_key_stands_for_work_that_is_done_once(client: Client) -> None:
    broker = client.broker
    keys = broker.idempotency
    broker.create_topic("keys")
    same = Envelope(idempotency_key="k1")
    results = broker.produce_batch("keys", [NewMessage("a", envelope=same), NewMessage("b", envelope=same)]).results
    assert [one.status for one in results] == ["produced", "duplicate"]
    assert not keys.begin("keys", "g", "k1", lease_ms=30_000).already_done
    with pytest.raises(ConflictError, match="held by another"):
        keys.begin("keys", "g", "k1", owner="other")
    assert keys.renew("keys", "g", "k1", lease_ms=30_000).status == "PENDING"
    keys.commit("keys", "g", "k1", result=b"\x00done")
    begun = keys.begin("keys", "g", "k1", owner="other")
    assert (begun.already_done, begun.result) == (True, b"\x00done")
    assert keys.get("keys", "g", "k1").status == "COMMITTED"
    keys.begin("keys", "g", "k2")
    assert keys.fail("keys", "g", "k2", error="no").status == "FAILED"
    with pytest.raises(NotFoundError):
        keys.get("keys", "g", "k3")


def test_what_cannot_be_done_is_said(client: Client) -> None:
    with pytest.raises(BadRequestError, match="create it first"):
        client.broker.produce("absent", "x")
    with pytest.raises(BadRequestError, match="topic does not exist"):
        next(client.broker.consume("absent", "g"))


def test_messages_are_read_whatever_the_name_of_their_topic(client: Client) -> None:
    client.broker.create_topic("no v0 name/%20")
    client.broker.produce("no v0 name/%20", "x")
    (stored,) = client.broker.messages("no v0 name/%20")
    assert isinstance(stored, StoredMessage)
    assert stored.message.value == "x"


def test_the_asynchronous_broker_does_the_same(url: str) -> None:
    async def use() -> list[str]:
        async with AsyncClient(url) as client:
            broker = client.broker
            await broker.create_topic("async")
            await asyncio.gather(*(broker.produce("async", str(n)) for n in range(10)))
            seen = []
            async with broker.consume("async", "g", lease_ms=30_000) as stream:
                async for delivery in stream:
                    await broker.ack(delivery)
                    seen.append(delivery.value)
                    if len(seen) == 10:
                        break
            assert (await broker.idempotency.begin("async", "h", "k")).status == "PENDING"
            return seen

    assert sorted(asyncio.run(use())) == [str(n) for n in range(10)]
