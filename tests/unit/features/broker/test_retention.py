"""Retention: only what is old and done for every group goes, and totals and groups follow."""

import pytest

from driftq.errors import InvalidRequestError
from driftq.features.broker.redrive_topics import BrokerRedriveTopics
from driftq.features.broker.retention import Retention
from driftq.system.runtime import run
from tests.unit.failing import fail_once
from tests.unit.features.broker.rig import BrokerRig

AGE_MS = 10_000


@pytest.fixture
def rig() -> BrokerRig:
    rig = BrokerRig(v1_retention_ms=AGE_MS)
    rig.create("t", 2)
    return rig


def _start(rig: BrokerRig, topic: str = "t") -> int:
    return rig.broker.broker_state.by_name[topic].index.start


def _stored(rig: BrokerRig, topic: str = "t") -> list[int]:
    return [record["$seq"] - 1 for record in rig.engine_rig.walk(f"@{topic}")[0]]


def test_what_is_old_and_done_goes_and_what_is_young_or_open_stays(rig: BrokerRig) -> None:
    rig.produce(*"abc", partition_override=0)
    rig.produce(*"de", partition_override=1)
    consumer = rig.consume(lease_ms=60_000, credit=0)
    consumer.take()
    for offset in (0, 1, 4):
        consumer.ack(offset, int(offset > 2))
    rig.advance(AGE_MS // 2)
    rig.produce("young")
    assert _start(rig) == 0
    rig.advance(AGE_MS // 2 + AGE_MS // 5)
    assert (_start(rig), _stored(rig)) == (2, [2, 3, 4, 5])
    consumer.ack(2)
    consumer.ack(3, 1)
    rig.advance(AGE_MS // 5)
    assert (_start(rig), _stored(rig)) == (5, [5])
    assert [(part.count, part.size) for part in rig.broker.broker_state.by_name["t"].index.parts] == [(1, 5), (0, 0)]
    assert (rig.lag(), rig.lag(partition=1)) == (1, 0)


def test_a_seek_to_the_end_waits_for_a_trim_that_is_on_its_way(rig: BrokerRig) -> None:
    rig.create("one", 1)
    rig.produce(*"abcde", topic="one")
    consumer = rig.consume(topic="one", credit=0)
    for delivery in consumer.take():
        consumer.ack(delivery.offset)
    consumer.close()
    rig.engine_rig.clock.advance(2 * AGE_MS)
    sweep = run(rig.broker.retention.sweep())
    seek = rig.broker.seek("one", "g", {0: 10**6}, force=True)
    rig.run(sweep)
    rig.run(seek)
    rig.produce(*"xyz", topic="one")
    assert rig.lag(topic="one") == 3
    rig.engine_rig.checkpoint()
    rig.restart()
    assert rig.lag(topic="one") == 3


def test_every_group_that_is_known_has_to_have_it_done(rig: BrokerRig) -> None:
    rig.produce(*"ab")
    quick, slow = rig.consume(group="quick", credit=0), rig.consume(group="slow", lease_ms=60_000, credit=0)
    for delivery in quick.take():
        quick.ack(delivery.offset)
    slow.take()
    rig.advance(2 * AGE_MS)
    assert _start(rig) == 0
    slow.ack(0)
    rig.advance(AGE_MS)
    assert _start(rig) == 1


def test_a_topic_that_nobody_reads_goes_by_age_and_a_new_group_starts_at_what_is_left(rig: BrokerRig) -> None:
    rig.produce(*"abc")
    rig.advance(2 * AGE_MS)
    rig.produce("d")
    assert (_start(rig), _stored(rig)) == (3, [3])
    assert rig.consume(group="late").offsets() == [3]
    assert rig.lag(group="late") == 1


def test_a_group_that_had_everything_done_is_still_known_after_a_restart(rig: BrokerRig) -> None:
    rig.produce("a")
    consumer = rig.consume()
    consumer.take()
    consumer.ack(0)
    consumer.close()
    rig.advance(2 * AGE_MS)
    assert _start(rig) == 1
    rig.engine_rig.checkpoint()
    rig.restart()
    rig.produce("b")
    rig.advance(2 * AGE_MS)
    assert _stored(rig) == [1], "the group has not done it"
    assert rig.consume().offsets() == [1]


@pytest.mark.parametrize("starts", [0, 1, 2])
def test_a_group_that_was_put_to_the_beginning_keeps_everything_over_restarts(rig: BrokerRig, starts: int) -> None:
    rig.produce("a", "b")
    rig.run(rig.broker.seek("t", "g", {0: 0, 1: 0}))
    for _ in range(starts):
        rig.restart()
    assert [group.group for group in rig.broker.groups()] == ["g"]
    rig.advance(2 * AGE_MS)
    assert (_start(rig), rig.consume().offsets()) == (0, [0, 1])


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_restart_and_a_crash_keep_start_and_totals(rig: BrokerRig, *, checkpointed: bool) -> None:
    rig.produce(*"abcd", partition_override=1)
    consumer = rig.consume(lease_ms=60_000, credit=0)
    consumer.take()
    for offset in (0, 1, 3):
        consumer.ack(offset, 1)
    if checkpointed:
        rig.engine_rig.checkpoint()
    rig.advance(2 * AGE_MS)
    rig.produce("e")
    before = rig.broker.broker_state.capture()
    for life in (rig.restart, rig.crash, rig.crash):
        life()
        assert (_start(rig), _stored(rig)) == (2, [2, 3, 4])
        assert rig.broker.broker_state.capture() == before
        assert (rig.lag(), rig.lag(partition=1)) == (1, 1)


def test_the_other_api_says_what_is_missing(rig: BrokerRig) -> None:
    rig.produce(*"abc")
    rig.advance(2 * AGE_MS)
    records, tombstones = rig.engine_rig.walk("@t")[:2]
    assert records == []
    assert [stone["reason"] for stone in tombstones] == ["ttl"]


def test_dead_letters_that_nobody_reads_stay_until_they_are_moved(rig: BrokerRig) -> None:
    rig.produce("x", retry=(1, 0, 0))
    rig.produce("y", retry=(1, 0, 0))
    consumer = rig.consume(credit=0)
    for delivery in consumer.take():
        consumer.nack(delivery.offset)
    rig.advance(3 * AGE_MS)
    assert (_start(rig), _start(rig, "dlq.t")) == (2, 0)
    letters = BrokerRedriveTopics(rig.engine_rig.engine, rig.broker.broker_state, rig.broker.producer)
    page, _ = rig.run(letters.read("dlq.t", 0, 1))
    rig.run(letters.retire("dlq.t", page[0]))
    rig.advance(AGE_MS)
    assert _start(rig, "dlq.t") == 1
    assert rig.broker.broker_state.by_name["dlq.t"].index.parts[0].retired == {}


def test_an_ack_of_what_is_gone_is_a_late_one_and_a_seek_lands_on_what_is_left(rig: BrokerRig) -> None:
    rig.produce(*"abc")
    consumer = rig.consume(credit=0)
    for delivery in consumer.take():
        consumer.ack(delivery.offset)
    rig.advance(2 * AGE_MS)
    consumer.ack(1)
    with pytest.raises(InvalidRequestError, match="not in-flight"):
        consumer.nack(1)
    rig.run(rig.broker.seek("t", "g", {0: 0}, force=True))
    rig.produce("d")
    assert consumer.offsets() == [3]
    assert rig.lag() == 1


def test_a_group_that_comes_while_a_trim_is_logged_is_not_given_what_goes(rig: BrokerRig) -> None:
    rig.produce(*"abc")
    rig.engine_rig.clock.advance(2 * AGE_MS)
    sweep = run(rig.broker.retention.sweep())
    late = rig.consume(group="late")
    rig.run(sweep)
    assert late.offsets() == []
    assert rig.lag(group="late") == 0


def test_retention_works_where_nothing_outlives_the_process() -> None:
    rig = BrokerRig(v1_retention_ms=AGE_MS, durability="ephemeral")
    rig.create("t")
    rig.produce(*"ab")
    rig.advance(2 * AGE_MS)
    assert _stored(rig) == []


def test_more_than_a_frame_takes_goes_in_steps(rig: BrokerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftq.features.broker.retention._STEP", 3)
    rig.produce(*"abcdefgh")
    rig.advance(2 * AGE_MS)
    assert (_start(rig), _stored(rig)) == (8, [])


def test_a_look_that_fails_is_told_and_is_not_the_last(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig.produce("a", partition_override=0)
    rig.advance(AGE_MS)
    fail_once(monkeypatch, Retention, "_trim")
    rig.advance(AGE_MS // 10)
    assert [record.exc_info is not None for record in caplog.records] == [True]
    assert _start(rig) == 0
    rig.advance(AGE_MS // 10)
    assert _start(rig) == 1
