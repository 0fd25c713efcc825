"""The tick: one that fails is told, costs nobody else his turn, and is not the last."""

import pytest

from driftq.features.broker.consumer.dispatcher import Dispatcher
from driftq.features.broker.consumer.message_settlement import MessageSettler
from driftq.features.broker.protocols import NoRegistry
from tests.unit.failing import BugError, fail_once
from tests.unit.features.broker.rig import BrokerRig


def _leased(rig: BrokerRig) -> None:
    consumer = rig.consume(lease_ms=1000)
    assert consumer.offsets() == [0, 1, 2]
    consumer.close()


def test_a_sweep_that_fails_holds_up_neither_this_tick_nor_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fail_once(monkeypatch, NoRegistry, "sweep")
    rig = BrokerRig()
    rig.create()
    rig.produce(*"abc")
    _leased(rig)
    with pytest.RaisesGroup(BugError):
        rig.advance(250)
    rig.advance(1000)
    assert rig.consume().offsets() == [0, 1, 2]


@pytest.mark.parametrize("step", ["due", "_fail"])
def test_a_message_that_fails_is_looked_at_again_and_the_others_at_once(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    _leased(rig)
    fail_once(monkeypatch, MessageSettler, step)
    with pytest.RaisesGroup(BugError, flatten_subgroups=True):
        rig.advance(1250)
    consumer = rig.consume()
    assert consumer.offsets() == [1, 2]
    rig.advance(250)
    assert consumer.offsets() == [0]


def test_a_frame_that_cannot_be_made_leaves_no_message_under_way(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    _leased(rig)
    fail_once(monkeypatch, type(rig.broker.broker_state), "log")
    with pytest.RaisesGroup(BugError, flatten_subgroups=True):
        rig.advance(1250)
    rig.advance(250)
    assert sorted(rig.consume().offsets()) == [0, 1, 2]


def test_a_group_that_cannot_be_served_is_served_at_the_next_tick(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = rig.consume(group="first"), rig.consume(group="second")
    fail_once(monkeypatch, Dispatcher, "_offer")
    with pytest.RaisesGroup(BugError, flatten_subgroups=True):
        rig.run_all()
    assert second.offsets() == [0, 1, 2]
    assert first.offsets() == []
    rig.advance(250)
    assert first.offsets() == [0, 1, 2]
