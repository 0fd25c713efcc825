"""When writes are refused and pushes held back: only while the log or the loop cannot keep up."""

import pytest

from driftq.engine.pressure import TICK_MS, Level
from driftq.errors import ThrottledError
from driftq.model.limits import WAL_QUEUE_MAX
from driftq.testing import EngineRig


def queue(rig: EngineRig, submissions: int) -> None:
    shard = rig.engine.shards.all[0]
    while shard.depth < submissions:
        shard.sync(lambda _, __: None)


@pytest.mark.parametrize(
    ("depth", "level"),
    [
        (WAL_QUEUE_MAX * 50 // 100, Level.CALM),
        (WAL_QUEUE_MAX * 50 // 100 + 1, Level.PRESSED),
        (WAL_QUEUE_MAX * 90 // 100, Level.PRESSED),
        (WAL_QUEUE_MAX * 90 // 100 + 1, Level.CRITICAL),
    ],
)
def test_a_full_queue_presses(depth: int, level: Level) -> None:
    rig = EngineRig()
    queue(rig, depth)
    assert rig.engine.pressure.level is level
    rig.runtime.run_until_idle()
    rig.engine.shards.flush()
    rig.runtime.run_until_idle()
    assert rig.engine.pressure.level is Level.CALM


@pytest.mark.parametrize(("late_ms", "level"), [(50, Level.CALM), (51, Level.PRESSED), (501, Level.CRITICAL)])
def test_a_loop_that_is_late_presses_until_it_is_on_time_again(late_ms: int, level: Level) -> None:
    rig = EngineRig()
    rig.clock.advance(TICK_MS + late_ms)
    rig.runtime.advance(0)
    assert rig.engine.pressure.level is level
    rig.runtime.advance(TICK_MS)
    assert rig.engine.pressure.level is Level.CALM


def test_a_critical_server_refuses_writes_and_says_when_to_come_back() -> None:
    rig = EngineRig()
    rig.engine.pressure.check_write()
    queue(rig, WAL_QUEUE_MAX)
    with pytest.raises(ThrottledError) as caught:
        rig.engine.pressure.check_write()
    assert caught.value.detail == {"retry_after_ms": 100}
