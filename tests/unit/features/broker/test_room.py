"""Which groups hold producers up after a seek or a restart."""

import pytest

from driftq.errors import OverloadedError
from driftq.testing import CrashMode
from tests.unit.features.broker.rig import BrokerRig, Consumer


@pytest.fixture
def rig() -> BrokerRig:
    rig = BrokerRig(partition_msgs_max=3)
    rig.create()
    return rig


def _work(rig: BrokerRig, messages: int, *consumers: Consumer) -> None:
    """Messages that each of them does as they come."""
    for _ in range(messages):
        (made,) = rig.produce("v")
        for consumer in consumers:
            consumer.ack(made.offset)


def test_a_group_that_was_put_back_holds_nobody_up_before_it_has_caught_up_again(rig: BrokerRig) -> None:
    live, replaying = rig.consume(group="live"), rig.consume(group="replaying")
    _work(rig, 6, live, replaying)
    replaying.take()
    rig.run(rig.broker.seek("t", "replaying", {0: 0}, force=True))
    assert replaying.offsets() == [0, 1, 2, 3, 4, 5]
    replaying.ack(0)
    _work(rig, 1, live)
    for offset in range(1, 6):
        replaying.ack(offset)
    _work(rig, 2, live)
    with pytest.raises(OverloadedError):
        rig.produce("v")


@pytest.mark.parametrize("crash", [False, True])
def test_a_group_that_was_put_near_the_end_counts_from_there_on(rig: BrokerRig, crash: bool) -> None:
    live, slow = rig.consume(group="live"), rig.consume(group="slow")
    _work(rig, 6, live, slow)
    rig.run(rig.broker.seek("t", "slow", {0: 5}, force=True))
    if crash:
        rig.crash(CrashMode.DROP)
        live = rig.consume(group="live")
    _work(rig, 2, live)
    with pytest.raises(OverloadedError):
        rig.produce("v")
