"""Crashes while segments move to the cold tier."""

import pytest

from driftq.errors import UnrecoverableError
from driftq.testing import CrashMode
from tests.crash import scenarios
from tests.crash.sweep import run_and_sweep
from tests.crash.world import World

pytestmark = pytest.mark.crash


def test_a_crash_at_any_call_of_a_relocation_leaves_a_good_copy() -> None:
    """proves: G-SEG-4, G-SEG-5, G-DEL-1, G-DUR-1, G-REC-1, G-REC-2, G-TOMB-1; inv: 86"""
    run_and_sweep("relocate", scenarios.relocate)


def _moved(*, cold: bool) -> World:
    world = World().start(segment_max_events=6, cold_dir="/cold" if cold else None, hot_retain_segments=0)
    world.put("plain", "fsync")
    world.settle()
    for _ in range(4):
        world.append("plain", 7, tags=["a", "b", None], metas=["m", None], nodes=["n", None, "m"])
        world.settle()
    world.delete("plain", seqs=[2, 9])
    world.advance(6000)
    world.delete("plain", tag="a")
    world.settle()
    return world


@pytest.mark.parametrize("limit", [1, 5, 256])
def test_a_cold_topic_reads_as_a_hot_one(limit: int) -> None:
    """Before and after a restart, by pages of any size.

    proves: G-SEG-4; inv: 86
    """
    hot, cold = _moved(cold=False), _moved(cold=True)
    assert any(segment.cold for segment in cold.engine.topic("plain").segments)
    assert cold.read("plain", limit=limit) == hot.read("plain", limit=limit)
    for world in (hot, cold):
        world.crash(CrashMode.DROP)
        world.judge()
    assert cold.read("plain", limit=limit) == hot.read("plain", limit=limit)
    assert cold.picture()["topics"] == hot.picture()["topics"]


def test_a_hot_copy_that_comes_back_does_not_bring_deleted_records_with_it() -> None:
    """The removal of the hot copy is not synced. A checkpoint that knows of the move passes such a copy over: flags
    that were flipped since are in the cold one alone.

    proves: G-SEG-5, G-DEL-1
    """
    world = World().start(segment_max_events=6, cold_dir="/cold", hot_retain_segments=0)
    world.put("plain", "fsync")
    world.settle()
    world.append("plain", 12)
    world.settle()
    assert world.checkpoint()
    world.advance(6000)
    world.delete("plain", seqs=[2, 3])
    world.settle()
    assert world.checkpoint()
    world.advance(2000)
    assert world.checkpoint()
    world.crash(CrashMode.DROP)
    world.judge()
    assert world.disk.names("/data/topics/00000001") == []


def test_a_start_without_the_cold_directory_is_refused() -> None:
    """What is there cannot be reached; holes in its place would be for ever.

    proves: G-REC-9
    """
    world = _moved(cold=True)
    assert world.checkpoint()
    before = world.disk.fork()
    again = World(before.fork(), ledger=world.ledger.copy(), settings=world.settings)
    with pytest.raises(UnrecoverableError, match="cold"):
        again.start(cold_dir=None)
    again.start(cold_dir="/cold")
    again.judge()
