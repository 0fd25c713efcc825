"""Acks of one turn share a frame; what else is logged of the topic comes behind them. And what dispatch has at hand."""

from collections.abc import Sequence
from typing import Any

import pytest

from driftq.errors import DriftQError
from driftq.features.broker.protocols import OutgoingMessage
from driftq.features.broker.state.broker_frames import GroupKind
from driftq.features.broker.state.message_cache import MessageCache
from driftq.features.broker.state.stored_messages import Read
from driftq.model.message import Envelope, Message
from driftq.system.runtime import Pending
from tests.unit.features.broker.rig import BrokerRig, Consumer


class _Frames:
    """The kinds that a broker logs."""

    def __init__(self, rig: BrokerRig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kinds: list[GroupKind] = []
        engine = rig.engine_rig.engine
        log = engine.log

        def noting(topic: Any, kind: int, *args: Any, **options: Any) -> Any:
            self.kinds.append(GroupKind(kind))
            return log(topic, kind, *args, **options)

        monkeypatch.setattr(engine, "log", noting)


@pytest.fixture
def rig() -> BrokerRig:
    rig = BrokerRig()
    rig.create("t")
    rig.produce(*"abcdef")
    return rig


def test_acks_of_one_turn_are_one_frame_and_survive_a_crash(rig: BrokerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    consumers = [rig.consume(group=group, credit=0) for group in "gh"]
    for consumer in consumers:
        consumer.take()
    frames = _Frames(rig, monkeypatch)
    answers = [rig.broker.ack(c.place(offset), c.owner) for c in consumers for offset in (2, 0, 1, 4)]
    rig.run_all()
    assert all(answer.settled and answer.error is None for answer in answers)
    assert frames.kinds == [GroupKind.DONE]
    rig.crash()
    for group in "gh":
        assert rig.consume(group=group, credit=0).offsets() == [3, 5]


def test_one_ack_alone_says_whether_it_is_the_highest(rig: BrokerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = rig.consume(credit=0)
    consumer.take()
    frames = _Frames(rig, monkeypatch)
    consumer.ack(3)
    consumer.ack(1)
    assert frames.kinds == [GroupKind.OFFSET, GroupKind.GAP]


def test_a_seek_behind_acks_of_the_same_turn_wins_over_them(rig: BrokerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = rig.consume(credit=0)
    consumer.take()
    frames = _Frames(rig, monkeypatch)
    acks = [rig.broker.ack(consumer.place(offset), "a") for offset in (0, 1)]
    sought = rig.broker.seek("t", "g", {0: 0}, force=True)
    rig.run_all()
    assert all(ack.settled and ack.error is None for ack in acks)
    assert sought.settled
    assert frames.kinds == [GroupKind.DONE, GroupKind.SEEK]
    assert consumer.offsets() == [0, 1, 2, 3, 4, 5]


def test_acks_that_cannot_be_logged_have_not_happened(rig: BrokerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = rig.consume(credit=0, lease_ms=1000)
    consumer.take()

    def refuse(*_: Any, **__: Any) -> Any:
        raise DriftQError("no")

    with monkeypatch.context() as patched:
        patched.setattr(rig.engine_rig.engine, "log", refuse)
        acks = [rig.broker.ack(consumer.place(offset), "a") for offset in (0, 1)]
        rig.run_all()
    assert [type(ack.error) for ack in acks] == [DriftQError, DriftQError]
    rig.advance(2000)
    assert {delivery.offset for delivery in consumer.take()} >= {0, 1}


def _read(text: str) -> Read:
    return Read(Message(text), 1)


def test_recent_messages_are_as_many_as_there_is_room_for_and_the_oldest_go() -> None:
    message_cache = MessageCache(bytes_max=3000)
    for offset in range(10):
        message_cache.put(1, offset, _read("x" * 100))
    message_cache.put(1, 9, _read("another"))
    assert len(message_cache) == 4
    assert message_cache.get(1, 5) is None
    found = message_cache.get(1, 9)
    assert found is not None
    assert found.message.value == "x" * 100
    assert message_cache.get(2, 9) is None


def test_an_envelope_takes_room_too() -> None:
    message_cache = MessageCache(bytes_max=30_000)
    for offset in range(10):
        message_cache.put(1, offset, Read(Message("x", envelope=Envelope(step_id="s" * 10_000)), 1))
    assert len(message_cache) == 2


def test_a_backlog_is_read_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = BrokerRig(in_flight_max=1000)
    rig.create("t", 2)
    rig.produce(*map(str, range(200)), partition_override=1)
    reads: list[int] = []
    engine = rig.engine_rig.engine
    rows = engine.rows

    def noting(topic: Any, seqs: Any, budget: int) -> Any:
        reads.append(len(seqs))
        return rows(topic, seqs, budget)

    monkeypatch.setattr(engine, "rows", noting)
    got = rig.consume(credit=0).take()
    assert [(delivery.offset, delivery.message.value) for delivery in got] == [(n, str(n)) for n in range(200)]
    assert len(reads) < 100, "fewer reads than messages"
    reads.clear()
    rig.produce("fresh", partition_override=1)
    rig.run_all()
    assert reads == [], "the newest is at hand"


def test_a_message_that_is_being_acked_takes_no_credit(rig: BrokerRig) -> None:
    consumer = rig.consume(credit=1)
    assert consumer.offsets() == [0]
    acked = rig.broker.ack(consumer.place(0), "a")
    rig.engine_rig.runtime.run_loop_only()
    assert not acked.settled, "the log has not written it yet"
    assert [delivery.offset for delivery in consumer.got] == [1]
    rig.run_all()
    assert acked.error is None
    assert [delivery.offset for delivery in consumer.got] == [1]


def test_a_message_whose_ack_cannot_be_logged_takes_its_credit_again(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = rig.consume(credit=2, lease_ms=60_000)
    assert consumer.offsets() == [0, 1]
    failing: Pending[None] = Pending()
    with monkeypatch.context() as patched:
        patched.setattr(rig.engine_rig.engine, "log", lambda *_, **__: failing)
        acked = rig.broker.ack(consumer.place(0), "a")
        assert consumer.offsets() == [2]
        failing.fail(DriftQError("no"))
    assert isinstance(acked.error, DriftQError)
    consumer.ack(1)
    assert consumer.offsets() == [], "messages 0 and 2 are held"
    consumer.ack(0)
    assert consumer.offsets() == [3]


def test_what_a_stream_is_given_in_one_turn_leaves_together_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = BrokerRig()
    rig.create()
    rig.produce(*map(str, range(40)))
    lots: list[list[int]] = []

    def noted(consumer: Consumer, deliveries: Sequence[OutgoingMessage]) -> None:
        lots.append([delivery.offset for delivery in deliveries])

    monkeypatch.setattr(Consumer, "deliver", noted)
    rig.consume(credit=40)
    rig.run_all()
    assert lots == [list(range(32)), list(range(32, 40))]


def test_streams_and_partitions_take_turns_message_by_message() -> None:
    rig = BrokerRig()
    rig.create(partitions=2)
    for number in range(8):
        rig.produce(str(number), partition_override=number // 4)
    first, second = rig.consume(owner="a"), rig.consume(owner="b")
    got = first.take(), second.take()
    assert [[(one.partition, one.offset) for one in some] for some in got] == [
        [(0, 0), (0, 1), (0, 2), (0, 3)],
        [(1, 4), (1, 5), (1, 6), (1, 7)],
    ]
    assert [one.attempts for some in got for one in some] == [1] * 8


def test_a_stream_without_room_gets_no_more_than_few_large_messages_ahead() -> None:
    rig = BrokerRig()
    rig.create()
    rig.produce(*["x" * 10_000] * 10)

    class Narrow(Consumer):
        def deliver(self, deliveries: Sequence[OutgoingMessage]) -> None:
            super().deliver(deliveries)
            self.open = False

    narrow = Narrow(rig, "t", "g", "a", 0, 100, "")
    assert narrow.offsets() == [0, 1]


def test_another_stream_gets_its_messages_though_the_outlet_of_one_fails() -> None:
    rig = BrokerRig()
    rig.create()
    rig.produce("0", "1")

    class Failing(Consumer):
        def deliver(self, deliveries: Sequence[OutgoingMessage]) -> None:
            raise ZeroDivisionError

    failing = Failing(rig, "t", "g", "a", 0, None, "")
    other = rig.consume(owner="b")
    with pytest.raises(ExceptionGroup):
        rig.run_all()
    assert other.offsets() == [1]
    assert failing.got == []
