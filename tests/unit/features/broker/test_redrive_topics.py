"""Redrive on a broker: a retired letter is done for every group, for good, and everything else stays."""

import pytest

from driftq.features.broker.redrive import AUDIT, Filter, Redriver, RunningRedrive
from driftq.features.broker.redrive_topics import BrokerRedriveTopics
from driftq.testing import SeededEntropy
from tests.unit.features.broker.rig import BrokerRig, RegisteredRig


class _Rig(BrokerRig):
    @property
    def letters(self) -> BrokerRedriveTopics:
        return BrokerRedriveTopics(self.engine_rig.engine, self.broker.broker_state, self.broker.producer)

    @property
    def redriver(self) -> Redriver:
        rig = self.engine_rig
        return Redriver(self.letters, rig.runtime, SeededEntropy(1), rig.clock.wall_ms, rig.clock.wall_ms)

    def redrive(self, **options: int) -> RunningRedrive:
        job = self.run(self.redriver.ask("t", Filter(), **options))  # type: ignore[arg-type]
        assert isinstance(job, RunningRedrive)
        return job

    def left(self) -> int:
        found = self.run(self.redriver.ask("t", Filter(), dry_run=True))
        assert isinstance(found, int)
        return found


@pytest.fixture
def rig() -> _Rig:
    """Three letters, of messages in two partitions."""
    rig = _Rig()
    rig.create("t", 2)
    rig.produce("a", "b", "c", partition_override=1, retry=(1, 0, 0))
    consumer = rig.consume()
    for offset in range(3):
        consumer.take()
        consumer.nack(offset, "boom", partition=1)
    assert rig.left() == 3
    consumer.close()
    return rig


def test_a_letter_goes_back_to_its_partition_with_its_policy(rig: _Rig) -> None:
    job = rig.redrive()
    assert (job.state, job.moved) == ("done", 3)
    back = rig.consume().take()
    assert [(found.partition, found.offset, found.message.value) for found in back] == [
        (1, 3, "a"),
        (1, 4, "b"),
        (1, 5, "c"),
    ]
    envelope = back[0].message.envelope
    assert envelope is not None
    assert envelope.dlq is None
    assert envelope.retry_policy is not None
    assert envelope.retry_policy.max_attempts == 1
    assert len(rig.consume(AUDIT).take()) == 3


@pytest.mark.parametrize("life", ["live", "restart", "crash"])
def test_a_moved_letter_is_done_for_every_group_that_is_and_that_will_be(rig: _Rig, life: str) -> None:
    reader = rig.consume("dlq.t", "reader")
    assert len(reader.take()) == 3
    reader.close()
    rig.redrive(limit=2)
    if life == "restart":
        rig.restart()
    elif life == "crash":
        rig.crash()
    assert rig.left() == 1
    assert [found.message.value for found in rig.consume("dlq.t", "later").take()] == ["c"]
    reader = rig.consume("dlq.t", "reader")
    rig.advance(3000)
    assert {found.message.value for found in reader.take()} == {"c"}
    assert rig.lag("dlq.t", "reader") == 1


def test_a_letter_that_somebody_holds_is_his_no_more_and_his_ack_is_a_success(rig: _Rig) -> None:
    reader = rig.consume("dlq.t", "reader", credit=1)
    (held,) = reader.take()
    rig.redrive(limit=1)
    reader.ack(held.offset, held.partition)
    assert [found.message.value for found in reader.take()] == ["b"]


def test_a_group_that_is_moved_back_does_not_get_a_retired_letter(rig: _Rig) -> None:
    rig.redrive(limit=1)
    reader = rig.consume("dlq.t", "reader")
    for found in reader.take():
        reader.ack(found.offset, found.partition)
    reader.close()
    rig.run(rig.broker.seek("dlq.t", "reader", {0: 0, 1: 0}))
    assert [found.message.value for found in rig.consume("dlq.t", "reader").take()] == ["b", "c"]


def test_letters_are_read_a_page_at_a_time(rig: _Rig) -> None:
    first, further = rig.run(rig.letters.read("dlq.t", 0, 2))
    assert ([letter.offset for letter in first], further) == ([0, 1], 2)
    assert further is not None
    second, end = rig.run(rig.letters.read("dlq.t", further, 2))
    assert ([letter.offset for letter in second], end) == ([2], None)
    assert rig.run(rig.letters.read("dlq.t", 9, 2)) == ([], None)


def test_letters_larger_than_a_page_are_all_read() -> None:
    rig = _Rig()
    rig.create("t")
    rig.produce(*["x" * 600_000] * 5)
    seen = []
    place: int | None = 0
    while place is not None:
        page, place = rig.run(rig.letters.read("t", place, 256))
        seen += [letter.offset for letter in page]
    assert seen == [0, 1, 2, 3, 4]


class _KeyedRig(RegisteredRig, _Rig):
    """One letter with a key, of group `g`; group `h` has done the work."""

    def __init__(self) -> None:
        super().__init__()
        self.create()
        self.produce("v", idempotency_key="k", retry=(1, 0, 0))
        for group in "gh":
            consumer = self.consume(group=group)
            consumer.one()
            if group == "g":
                consumer.nack(0, "boom")
            else:
                consumer.ack(0)
            consumer.close()


@pytest.mark.parametrize("restarted", [False, True])
def test_what_comes_back_has_its_key_whether_there_was_a_restart_or_not(*, restarted: bool) -> None:
    rig = _KeyedRig()
    rig.advance(660_000)
    assert rig.redrive().moved == 1
    if restarted:
        rig.crash()
    (again,) = rig.produce("v", idempotency_key="k")
    assert again.duplicate
    rig.advance(660_000)
    (new,) = rig.produce("v", idempotency_key="k")
    assert not new.duplicate


def test_a_group_that_has_done_the_work_does_not_get_what_comes_back() -> None:
    rig = _KeyedRig()
    rig.advance(300_000)
    assert rig.redrive().moved == 1
    rig.advance(360_000)
    rig.registry.sweep()
    assert rig.consume(group="h", owner="b").take() == []
    assert rig.consume(group="g", owner="b").offsets() == [1]
