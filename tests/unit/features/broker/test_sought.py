"""What comes while a seek is on its way to the log: it is behind the seek, which has ended every delivery before it."""

from collections.abc import Callable
from contextlib import suppress

import pytest

from driftq.errors import DriftQError, InvalidRequestError
from driftq.features.broker.consumer.group_seek import Moved
from driftq.system.runtime import Pending
from tests.unit.features.broker.rig import BrokerRig, Consumer, message


def _seek(rig: BrokerRig, offset: int = 0) -> Pending[list[Moved]]:
    """A seek that is on its way."""
    rig.engine_rig.hold_wal()
    sought = rig.broker.seek("t", "g", {0: offset}, force=True)
    rig.run_all()
    assert not sought.settled
    return sought


def test_an_ack_is_refused_and_the_message_comes_again(rig: BrokerRig) -> None:
    consumer = rig.consume()
    assert consumer.offsets() == [0, 1, 2]
    _seek(rig)
    acked = rig.broker.ack(consumer.place(0), "a")
    nacked = rig.broker.nack(consumer.place(1), "a", "boom")
    rig.run_all()
    assert not acked.settled
    rig.engine_rig.release_wal()
    for refused in (acked, nacked):
        with pytest.raises(InvalidRequestError, match="not in-flight"):
            refused.result()
    assert [(found.offset, found.attempts, found.last_error) for found in consumer.take()] == [
        (0, 1, ""),
        (1, 1, ""),
        (2, 1, ""),
    ]
    assert (rig.lag(), consumer.stream.held) == (3, 3)
    rig.crash()
    assert [(found.offset, found.attempts) for found in rig.consume().take()] == [(0, 1), (1, 1), (2, 1)]


def test_an_ack_of_what_the_seek_makes_done_is_a_late_one(rig: BrokerRig) -> None:
    consumer = rig.consume()
    consumer.take()
    _seek(rig, offset=2)
    acked = rig.broker.ack(consumer.place(0), "a")
    rig.engine_rig.release_wal()
    assert acked.result() is None
    assert (consumer.offsets(), rig.lag()) == ([2], 1)


def test_a_lease_that_runs_out_meanwhile_fails_nothing(rig: BrokerRig) -> None:
    consumer = rig.consume(lease_ms=1000)
    consumer.take()
    _seek(rig)
    rig.advance(5000)
    rig.broker.produce("t", message("d"))
    rig.run_all()
    assert consumer.take() == []
    rig.engine_rig.release_wal()
    assert [(found.offset, found.attempts) for found in consumer.take()] == [(0, 1), (1, 1), (2, 1), (3, 1)]


def test_a_seek_that_cannot_be_logged_leaves_all_as_it_was(rig: BrokerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = rig.consume()
    consumer.take()
    failed: Pending[None] = Pending()
    with monkeypatch.context() as patched:
        patched.setattr(rig.engine_rig.engine, "log", lambda *_, **__: failed)
        sought = rig.broker.seek("t", "g", {0: 0}, force=True)
    acked = rig.broker.ack(consumer.place(0), "a")
    rig.produce("d")
    assert not acked.settled
    failed.fail(DriftQError("no"))
    rig.run_all()
    assert isinstance(sought.error, DriftQError)
    assert (acked.result(), rig.lag(), consumer.offsets()) == (None, 3, [3])


def test_of_two_seeks_the_second_wins(rig: BrokerRig) -> None:
    consumer = rig.consume()
    consumer.take()
    first = _seek(rig, offset=3)
    second = rig.broker.seek("t", "g", {0: 1}, force=True)
    rig.engine_rig.release_wal()
    assert (first.result(), second.result()) == ([(0, -1, 2)], [(0, 2, 0)])
    assert consumer.offsets() == [1, 2]


def _after(rig: BrokerRig, turns: int, call: Callable[[], object]) -> None:
    """Do something so many turns of the loop from now."""
    if turns:
        rig.engine_rig.runtime.soon(lambda: _after(rig, turns - 1, call))
    else:
        call()


def _overdelivered(seed: int) -> tuple[BrokerRig, Consumer]:
    rig = BrokerRig(seed=seed)
    rig.create()
    rig.produce("v", retry=(1, 0, 0))
    consumer = rig.consume(credit=1)
    consumer.one()
    return rig, consumer


@pytest.mark.parametrize("turns", range(16))
@pytest.mark.parametrize("seed", range(4))
def test_a_dead_letter_on_its_way_is_made_once_and_its_message_comes_again(seed: int, turns: int) -> None:
    rig, consumer = _overdelivered(seed)
    rig.broker.nack(consumer.place(0), "a", "boom")
    _after(rig, turns, lambda: rig.broker.seek("t", "g", {0: 0}, force=True))
    again = consumer.one()
    assert (again.offset, again.attempts, rig.lag(), consumer.stream.held) == (0, 1, 1, 1)
    letters = rig.consume("dlq.t", "letters").take() if "dlq.t" in rig.broker.topics() else []
    assert len(letters) <= 1
    assert sum(rig.broker.counters.dead_letters.values()) == len(letters)
    consumer.ack(0)
    rig.crash()
    assert rig.lag() == 0


@pytest.mark.parametrize("turns", range(16))
def test_whatever_an_ack_meets_its_message_is_done_if_it_says_so(turns: int) -> None:
    rig, consumer = _overdelivered(turns)
    acks: list[Pending[None]] = []

    def ack() -> None:
        with suppress(InvalidRequestError):
            acks.append(rig.broker.ack(consumer.place(0), "a"))

    rig.broker.seek("t", "g", {0: 0}, force=True)
    _after(rig, turns, ack)
    rig.run_all()
    done = any(ack.error is None for ack in acks)
    assert (rig.lag(), consumer.stream.held) == ((0, 0) if done else (1, 1))
