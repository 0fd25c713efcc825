"""Acks of many messages in one call: what they share, and what each of them is told."""

from typing import Any

import pytest

from driftq.errors import DriftQError, InternalError, InvalidRequestError, NotOwnerError
from driftq.features.broker.consumer.ack_batches import Acked
from driftq.features.broker.consumer.message_settlement import MessageSettler
from driftq.system.runtime import Pending
from tests.unit.features.broker.rig import BrokerRig


def acked(rig: BrokerRig, *messages: tuple[int, int], owner: str = "a") -> list[Acked]:
    answers = rig.broker.ack_all("t", "g", owner, messages)
    rig.run_all()
    return answers


def errors(answers: list[Acked]) -> list[type[BaseException] | None]:
    """Return the kind of error of each answer, all of which are there."""
    found = [answer.error if isinstance(answer, Pending) else answer for answer in answers]
    assert all(answer.settled for answer in answers if isinstance(answer, Pending))
    return [None if error is None else type(error) for error in found]


def consuming(*, partitions: int = 1, count: int = 4, **asked: Any) -> BrokerRig:
    rig = BrokerRig()
    rig.create(partitions=partitions)
    rig.produce(*map(str, range(count)))
    consumer = rig.consume(**asked)
    rig.run_all()
    assert consumer.got
    return rig


def test_messages_of_a_partition_that_are_acked_together_are_finished_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = consuming()
    finish, lots = MessageSettler.finish, []

    def noted(settler: MessageSettler, open_message: Any, entries: Any, *, commits: bool = False) -> Any:
        lots.append([entry.offset for entry in entries])
        return finish(settler, open_message, entries, commits=commits)

    monkeypatch.setattr(MessageSettler, "finish", noted)
    answers = acked(rig, (0, 0), (0, 3), (0, 1))
    assert errors(answers) == [None] * 3
    assert lots == [[0, 3, 1]]
    assert rig.lag() == 1


def test_every_partition_is_acked_and_a_restart_knows_it() -> None:
    rig = BrokerRig()
    rig.create(partitions=3)
    for number in range(6):
        rig.produce(str(number), partition_override=number % 3)
    consumer = rig.consume()
    places = [(one.partition, one.offset) for one in consumer.take()]
    assert len(places) == 6
    assert errors(acked(rig, *places[:5])) == [None] * 5
    rig.restart()
    assert [(one.partition, one.offset) for one in rig.consume().take()] == places[5:]


def test_a_message_that_is_named_twice_is_acked_once() -> None:
    rig = consuming()
    assert errors(acked(rig, (0, 1), (0, 1), (0, 0), (0, 1))) == [None] * 4
    assert rig.lag() == 2


def test_each_entry_is_told_what_a_single_ack_would_be() -> None:
    rig = consuming()
    assert errors(acked(rig, (0, 0))) == [None]
    answers = acked(rig, (0, 0), (0, 1), (0, 99), (7, 0), (0, 2))
    assert errors(answers) == [None, None, InvalidRequestError, InvalidRequestError, None]
    assert errors(acked(rig, (0, 3), owner="b")) == [NotOwnerError]
    assert rig.lag() == 1


def test_no_message_of_a_group_that_is_not_there_is_acked() -> None:
    rig = consuming()
    answers = rig.broker.ack_all("t", "other", "a", [(0, 0)])
    assert errors(answers) == [InvalidRequestError]
    assert errors(rig.broker.ack_all("no", "g", "a", [(0, 0)])) == [InvalidRequestError]


def test_what_could_not_be_logged_is_held_as_before_and_can_be_acked_later(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = consuming(credit=2)
    (stream,) = rig.broker.broker_state.find("t").groups["g"].streams

    def fails(*_: Any, **__: Any) -> Any:
        raise InternalError("the disk said no")

    with monkeypatch.context() as patched:
        patched.setattr(rig.engine_rig.engine, "log", fails)
        assert errors(acked(rig, (0, 0), (0, 1))) == [InternalError] * 2
    assert rig.lag() == 4
    assert stream.held >= 2
    assert errors(acked(rig, (0, 0), (0, 1))) == [None] * 2
    assert rig.lag() == 2


def test_acks_of_an_ephemeral_topic_are_answered_at_once() -> None:
    rig = BrokerRig(durability="ephemeral")
    rig.create()
    rig.produce("0", "1")
    assert len(rig.consume().take()) == 2
    answers = rig.broker.ack_all("t", "g", "a", [(0, 0), (0, 1)])
    assert errors(answers) == [None, None]
    assert rig.lag() == 0


def test_a_full_log_refuses_every_message_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = consuming()

    def full() -> None:
        raise DriftQError("no room")

    (shard,) = rig.engine_rig.engine.change_log.shards.all
    with monkeypatch.context() as patched:
        patched.setattr(shard, "check_room", full)
        assert errors(acked(rig, (0, 0), (0, 1))) == [DriftQError] * 2
    assert errors(acked(rig, (0, 0), (0, 1))) == [None] * 2
