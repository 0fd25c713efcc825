"""When writes are refused and pushes held back: only while the log or the loop cannot keep up."""

import pytest

from driftq.engine.load.pressure import TICK_MS, Level
from driftq.errors import ThrottledError, TopicNotFoundError
from driftq.model.limits import WAL_QUEUE_MAX
from driftq.testing import EngineRig, rows_of


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
def test_a_loop_that_is_late_again_presses_until_it_is_on_time(late_ms: int, level: Level) -> None:
    rig = EngineRig()
    for expected in (Level.CALM, level, level):
        rig.clock.advance(TICK_MS + late_ms)
        rig.runtime.advance(0)
        assert rig.engine.pressure.level is expected
    rig.runtime.advance(TICK_MS)
    assert rig.engine.pressure.level is Level.CALM


def test_a_critical_server_refuses_writes_and_says_when_to_come_back() -> None:
    rig = EngineRig()
    rig.engine.pressure.check_write()
    queue(rig, WAL_QUEUE_MAX)
    with pytest.raises(ThrottledError) as caught:
        rig.engine.pressure.check_write()
    assert caught.value.detail == {"retry_after_ms": 100}


def test_pressure_refuses_new_writes_and_creations_but_neither_repeats_nor_what_is_wrong_in_itself() -> None:
    rig = EngineRig()
    rig.write("t", 1, key="k")
    queue(rig, WAL_QUEUE_MAX * 90 // 100 + 1)
    for name in ("t", "new"):
        with pytest.raises(ThrottledError):
            rig.engine.append(name, rows_of([1]), yields=True)
    assert rig.engine.append("t", rows_of([1]), key="k", yields=True).result().deduped
    with pytest.raises(TopicNotFoundError):
        rig.engine.append("new", rows_of([1]), create=False, yields=True)
    written = rig.engine.append("t", rows_of([1]), yields=False)
    rig.runtime.run_until_idle()
    assert written.result().first_seq == 2
    assert [topic.name for topic in rig.engine.catalog.visible()] == ["t"]
