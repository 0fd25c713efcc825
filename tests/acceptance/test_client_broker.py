"""The SDK's broker client against a real server."""

import asyncio

import pytest
from msgspec import structs

from driftq.client import (
    AsyncClient,
    BadRequestError,
    Begun,
    Client,
    ConflictError,
    Envelope,
    Key,
    LeaseLostError,
    Nack,
    NewMessage,
    NotFoundError,
    RedriveFilter,
    RetryPolicy,
    SeekTo,
    StoredMessage,
)
from driftq.model.v1_answers import Extended
from tests.support.waiting import until


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


def test_messages_are_settled_in_batches(client: Client) -> None:
    broker = client.broker
    broker.create_topic("batches")
    broker.produce_batch("batches", [NewMessage(str(n)) for n in range(6)])
    with broker.consume("batches", "g", owner="me", lease_ms=60_000, max_in_flight=6) as stream:
        got = [next(stream) for _ in range(6)]
    assert broker.ack_batch(got[:2]) == [None, None]
    extended = broker.extend_batch(got[1:3], lease_ms=90_000)
    assert isinstance(extended[0], LeaseLostError)
    assert isinstance(extended[1], Extended)
    assert broker.nack_batch([Nack(got[3], "no", delay_ms=0), Nack(got[4], "never", dead_letter=True)]) == [None, None]
    (missing,) = broker.nack_batch([Nack(got[0])])
    assert isinstance(missing, LeaseLostError)
    assert broker.release_batch(got[5:]) == [None]
    with broker.consume("batches", "g", owner="other", lease_ms=60_000) as stream:
        again = sorted((one.offset, one.attempts, one.last_error) for one in (next(stream), next(stream)))
    assert again == [(3, 2, "no"), (5, 1, "")]
    (lost,) = broker.ack_batch([got[3]])
    assert isinstance(lost, LeaseLostError)
    assert broker.ack_batch([]) == []
    with pytest.raises(ValueError, match="one topic, group and owner"):
        broker.ack_batch([got[0], structs.replace(got[1], group="h")])


def test_keys_are_kept_in_batches(client: Client) -> None:
    client.broker.create_topic("keys.batch")
    keys = client.broker.idempotency
    place = ("keys.batch", "g")
    keys.begin(*place, "held", owner="other")
    begun = keys.begin_batch(*place, [Key("a"), Key("held"), Key("a", "tenant")], lease_ms=30_000)
    assert [one.status for one in begun] == ["PENDING", 409, "PENDING"]
    assert all(isinstance(one, Begun) for one in keys.renew_batch(*place, [Key("a"), Key("a", "tenant")]))
    committed = keys.commit_batch(*place, [Key("a", result=b"\x00done"), Key("never begun")])
    assert [one.status for one in committed] == ["COMMITTED", 404]
    (failed,) = keys.fail_batch(*place, [Key("a", "tenant", error="no luck")])
    assert failed.status == "FAILED"
    assert keys.get(*place, "a", tenant_id="tenant").last_error == "no luck"
    (done,) = keys.begin_batch(*place, [Key("a")], owner="other")
    assert isinstance(done, Begun)
    assert (done.already_done, done.result) == (True, b"\x00done")


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
            (again,) = await broker.idempotency.begin_batch("async", "h", [Key("k")])
            assert again.status == "PENDING"
            await broker.produce("async", "more")
            async with broker.consume("async", "g", lease_ms=30_000) as stream:
                assert await broker.ack_batch([await anext(stream)]) == [None]
            return seen

    assert sorted(asyncio.run(use())) == [str(n) for n in range(10)]
