"""Keyed messages on a broker with its registry: who may have them, and what acks and nacks do to their keys."""

import pytest

from driftq.errors import PreconditionError
from driftq.features.broker.idempotency.consumed_keys import Status
from driftq.features.broker.idempotency.registry import BeginResult
from driftq.features.broker.protocols import KeyOwner, Produced
from driftq.features.broker.state.broker_frames import GroupKind, RetryBody, encode
from tests.unit.features.broker.rig import RegisteredRig

WORK = KeyOwner("", "t", "g", "k")


@pytest.fixture
def rig() -> RegisteredRig:
    rig = RegisteredRig()
    rig.create()
    rig.produce("v", idempotency_key="k")
    return rig


def _status(rig: RegisteredRig) -> Status | None:
    entry = rig.registry.entry(WORK)
    return None if entry is None else entry.status


def test_a_delivery_takes_the_key_a_nack_fails_it_and_an_ack_commits_it(rig: RegisteredRig) -> None:
    consumer = rig.consume()
    assert (consumer.one().attempts, _status(rig)) == (1, Status.PENDING)
    consumer.close()
    consumer.nack(0, "boom")
    assert _status(rig) is Status.FAILED
    consumer = rig.consume(owner="b")
    assert (consumer.one().attempts, _status(rig)) == (2, Status.PENDING)
    consumer.ack(0)
    assert _status(rig) is Status.COMMITTED
    rig.crash()
    assert _status(rig) is Status.COMMITTED


def test_a_late_nack_does_not_take_the_key_from_who_works_on_it_now(rig: RegisteredRig) -> None:
    consumer = rig.consume(lease_ms=500)
    consumer.one()
    consumer.close()
    rig.advance(1000)
    rig.registry.begin_key(WORK, "other", 60_000)
    consumer.nack(0, "late")
    assert rig.registry.standing(WORK, 0).holder == "other"
    rig.run(rig.registry.commit_key(WORK, "other", b"R"))
    later = rig.consume(owner="c")
    assert later.take() == []
    assert rig.lag() == 0


def test_an_ack_is_refused_while_another_works_on_the_key(rig: RegisteredRig) -> None:
    consumer = rig.consume(lease_ms=500)
    consumer.one()
    consumer.close()
    rig.advance(1000)
    rig.registry.begin_key(WORK, "other", 60_000)
    with pytest.raises(PreconditionError):
        consumer.ack(0)


def test_an_extension_between_commit_and_ack_keeps_the_commit(rig: RegisteredRig) -> None:
    """A worker extends all that it has not settled: work that is done stays done, with its result."""
    consumer = rig.consume(lease_ms=500)
    consumer.one()
    rig.run(rig.registry.commit_key(WORK, "a", b"result"))
    rig.broker.extend(consumer.place(0), "a", 1000)
    assert rig.registry.begin_key(WORK, "a", 1000) == BeginResult(True, b"result", None)
    consumer.ack(0)
    entry = rig.registry.entry(WORK)
    assert entry is not None
    assert (entry.status, entry.result) == (Status.COMMITTED, b"result")


def test_a_message_committed_and_extended_is_not_delivered_again(rig: RegisteredRig) -> None:
    """inv1: 68"""
    consumer = rig.consume(lease_ms=500)
    consumer.one()
    rig.run(rig.registry.commit_key(WORK, "a", b"result"))
    rig.broker.extend(consumer.place(0), "a", 1000)
    consumer.close()
    rig.advance(2000)
    assert rig.consume(owner="b").take() == []
    assert rig.lag() == 0


def test_a_message_committed_and_not_acked_is_skipped_also_after_a_long_time(rig: RegisteredRig) -> None:
    """inv1: 68"""
    consumer = rig.consume(lease_ms=500)
    consumer.one()
    rig.run(rig.registry.commit_key(WORK, "a"))
    consumer.close()
    rig.advance(700_000)
    rig.crash()
    rig.advance(700_000)
    assert rig.consume(owner="b").take() == []
    assert rig.lag() == 0


@pytest.mark.parametrize("retry", [(1, 0, 0), (2, 0, 0), (1, 60_000, 60_000)])
def test_no_dead_letter_is_made_of_work_that_is_committed(retry: tuple[int, int, int]) -> None:
    """inv1: 68"""
    rig = RegisteredRig()
    rig.create()
    rig.produce("v", idempotency_key="k", retry=retry)
    consumer = rig.consume(lease_ms=1000)
    consumer.one()
    rig.run(rig.registry.commit_key(WORK, "a", b"R"))
    rig.advance(2000)
    assert (rig.broker.topics(), rig.lag(), rig.broker.counters.skips) == (["t"], 0, 1)
    consumer.ack(0)


def test_nor_after_a_crash_before_the_dead_letter() -> None:
    """inv1: 68"""
    rig = RegisteredRig()
    rig.create()
    rig.produce("v", idempotency_key="k", retry=(1, 0, 0))
    consumer = rig.consume(lease_ms=1000)
    consumer.one()
    group_partition = rig.broker.broker_state.by_name["t"].groups["g"].group_partitions[0]
    failed = RetryBody("g", 0, 0, group_partition.open[0].attempts, "ack_timeout", 0, 0)
    rig.run(rig.broker.broker_state.log(rig.broker.broker_state.by_name["t"], GroupKind.RETRY, encode(failed)))
    rig.run(rig.registry.commit_key(WORK, "a", b"R"))
    rig.crash()
    assert rig.consume().take() == []
    assert (rig.broker.topics(), rig.lag()) == (["t"], 0)


def test_a_repeat_stored_behind_both_windows_is_delivered(rig: RegisteredRig) -> None:
    """inv1: 67"""
    consumer = rig.consume()
    consumer.one()
    consumer.ack(0)
    rig.advance(300_000)
    rig.restart()
    (early,) = rig.produce("early", idempotency_key="k")
    assert early.duplicate
    rig.advance(360_000)
    rig.produce("second", idempotency_key="k")
    assert rig.consume().one().message.value == "second"


def test_keys_behind_their_windows_go_while_others_come_though_no_lease_ends() -> None:
    rig = RegisteredRig(idem_ttl_ms=1000, idem_consume_ttl_ms=1000)
    rig.create()
    for turn in range(10):
        for number in range(100):
            rig.produce("v", idempotency_key=f"{turn}:{number}")
            rig.registry.begin_key(WORK._replace(key=f"{turn}:{number}"), "a", 250)
        assert len(rig.registry.produced) <= 200
        assert len(rig.registry.consumed) <= 200
        rig.engine_rig.clock.advance(1001)


def test_a_duplicate_has_the_place_of_its_message_after_a_crash_and_none_when_that_is_gone() -> None:
    rig = RegisteredRig(v1_retention_ms=10_000)
    rig.create("t", 3)
    first, second = rig.produce("a", "b", idempotency_key="k", partition_override=2)
    assert (first.duplicate, second) == (False, Produced("t", 2, first.offset, duplicate=True))
    rig.crash()
    assert rig.produce("c", idempotency_key="k") == [second]
    consumer = rig.consume()
    consumer.take()
    consumer.ack(first.offset, 2)
    rig.advance(20_000)
    assert rig.produce("d", idempotency_key="k") == [Produced("t", duplicate=True)]
