"""A delivery that its owner gives back without having worked on it (http-v1 §22, `/v1/release/batch`)."""

import pytest

from driftq.errors import InvalidRequestError, NotOwnerError
from driftq.features.broker.protocols import KeyOwner
from tests.unit.features.broker.rig import BrokerRig, Consumer, RegisteredRig

LONG_MS = 60_000


def release(consumer: Consumer, offset: int, owner: str | None = None) -> None:
    rig = consumer.rig
    rig.run(rig.broker.release(consumer.place(offset), owner or consumer.owner))


def test_what_is_given_back_goes_to_the_next_stream_at_once_and_does_not_count(rig: BrokerRig) -> None:
    first = rig.consume(owner="a", lease_ms=LONG_MS)
    assert first.offsets() == [0, 1, 2]
    first.close()
    release(first, 1)
    second = rig.consume(owner="b", lease_ms=LONG_MS)
    got = second.one()
    assert (got.offset, got.attempts, got.last_error) == (1, 1, "")
    second.ack(1)
    assert rig.lag() == 2


def test_a_message_that_may_be_tried_once_is_not_a_dead_letter_when_it_is_given_back() -> None:
    rig = BrokerRig()
    rig.create()
    rig.produce("once", retry=(1, 0, 0))
    consumer = rig.consume()
    consumer.take()
    release(consumer, 0)
    assert consumer.one().attempts == 1
    assert rig.broker.topics() == ["t"], "there are no dead letters"


def test_an_earlier_failure_stays_as_it_was(rig: BrokerRig) -> None:
    consumer = rig.consume(lease_ms=LONG_MS)
    consumer.take()
    consumer.nack(0, "boom")
    assert consumer.one().attempts == 2
    release(consumer, 0)
    again = consumer.one()
    assert (again.attempts, again.last_error) == (2, "boom")
    rig.crash()
    after = {found.offset: found for found in rig.consume(credit=0).take()}[0]
    assert (after.attempts, after.last_error) == (2, "boom")


def test_nothing_is_logged(rig: BrokerRig) -> None:
    consumer = rig.consume(lease_ms=LONG_MS)
    consumer.take()
    frames = rig.engine_rig.engine.shards.all[0].counters.frames
    for offset in range(3):
        release(consumer, offset)
    assert rig.engine_rig.engine.shards.all[0].counters.frames == frames


def test_only_the_owner_of_a_live_lease_gives_back(rig: BrokerRig) -> None:
    consumer = rig.consume(lease_ms=1000)
    consumer.take()
    consumer.close()
    with pytest.raises(NotOwnerError):
        release(consumer, 0, owner="b")
    consumer.ack(1)
    with pytest.raises(InvalidRequestError, match="not in-flight"):
        release(consumer, 1)
    with pytest.raises(InvalidRequestError, match="not in-flight"):
        release(consumer, 7)
    release(consumer, 0)
    with pytest.raises(InvalidRequestError, match="not in-flight"):
        release(consumer, 0)
    with pytest.raises(InvalidRequestError, match="not in-flight"):
        consumer.ack(0)
    rig.advance(2000)
    release(consumer, 2)  # its lease has ended, and that counts as an attempt
    attempts = {found.offset: found.attempts for found in rig.consume(owner="b").take()}
    assert attempts == {0: 1, 2: 2}


def test_what_is_being_settled_is_waited_for(rig: BrokerRig) -> None:
    consumer = rig.consume(lease_ms=LONG_MS)
    consumer.take()
    acked = rig.broker.ack(consumer.place(0), "a")
    released = rig.broker.release(consumer.place(0), "a")
    assert not released.settled
    rig.run_all()
    assert acked.error is None
    assert isinstance(released.error, InvalidRequestError)


def test_the_stream_that_stays_has_its_credit_back(rig: BrokerRig) -> None:
    consumer = rig.consume(lease_ms=LONG_MS, credit=1)
    assert consumer.offsets() == [0]
    release(consumer, 0)
    assert consumer.offsets() == [0]
    consumer.ack(0)
    assert consumer.offsets() == [1]


def test_a_stream_that_leaves_by_its_name_ends_and_gets_no_more(rig: BrokerRig) -> None:
    leaving = rig.consume(name="one", lease_ms=LONG_MS, credit=2)
    others = [rig.consume(name=name, owner=owner, credit=0) for name, owner in (("two", "a"), ("one", "b"), ("", "a"))]
    rig.run_all()
    assert rig.broker.leave("t", "g", "a", "one") == 1
    assert [leaving.ended, *(one.ended for one in others)] == [True, False, False, False]
    held = leaving.offsets()
    rig.produce(*"defghi")
    assert leaving.take() == []
    assert sorted(offset for one in others for offset in one.offsets()) == sorted(set(range(9)) - set(held))
    leaving.ack(held[0])
    assert rig.broker.leave("t", "g", "a", "one") == 0
    assert rig.broker.leave("t", "nobody", "a", "one") == 0
    with pytest.raises(InvalidRequestError, match="topic does not exist"):
        rig.broker.leave("nope", "g", "a", "one")


def test_the_key_of_a_message_is_given_back_with_it() -> None:
    rig = RegisteredRig()
    rig.create()
    rig.produce("x", idempotency_key="k")
    first = rig.consume(owner="a", lease_ms=LONG_MS)
    first.take()
    first.close()
    release(first, 0)
    assert rig.consume(owner="b", lease_ms=LONG_MS).offsets() == [0]


def test_a_key_that_another_delivery_holds_stays_held() -> None:
    rig = RegisteredRig()
    rig.create("t", 2)
    scope = KeyOwner("", "t", "g", "k")
    rig.produce("x", idempotency_key="k", partition_override=0)
    first = rig.consume(owner="a", lease_ms=LONG_MS)
    first.take()
    rig.registry.delivered(scope, "a", LONG_MS * 2, 1, 99)
    release(first, 0)
    assert rig.registry.standing(scope, 0).holder == "a"
