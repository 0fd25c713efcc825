"""Crashes while records are deleted and their flags are flipped."""

import pytest

from driftq.testing import CrashMode
from tests.crash import scenarios
from tests.crash.sweep import run_and_sweep
from tests.crash.world import World

pytestmark = pytest.mark.crash


def test_a_crash_at_any_call_of_a_flip_brings_nothing_back() -> None:
    """proves: G-DEL-1, G-DEL-2, G-DEL-3, G-DEL-4, G-DEL-6, G-TOMB-1, G-REC-1, G-REC-2"""
    run_and_sweep("flag_flip", scenarios.flag_flip)


@pytest.mark.parametrize("mode", CrashMode)
def test_caps_take_the_same_records_again_whatever_was_deleted_since(mode: CrashMode) -> None:
    """Two records are evicted, then one is deleted and its flag may be flipped. A replay that found the flag before it
    came to the eviction would have room for one more, and bring an evicted record back.

    proves: G-DEL-6, G-TOMB-6, G-TOMB-7
    """
    world = World().start(segment_max_events=5)
    world.put("capped", "fsync", cap_records=10)
    world.settle()
    world.append("capped", 10)
    world.settle()
    assert world.checkpoint()
    world.append("capped", 2)
    world.settle()
    world.delete("capped", seqs=[8, 9])
    world.advance(3000)
    world.write_back("/data/topics")
    world.crash(mode, 3)
    world.judge()
    assert (world.engine.topic("capped").earliest, world.engine.topic("capped").cap_lost) == (3, 2)


def test_a_record_written_behind_a_delete_survives_its_replay() -> None:
    """proves: G-DEL-2"""
    world = World().start(segment_max_events=4)
    for name in ("fsync", "disk"):
        world.put(name, name)
    world.settle()
    for name in ("fsync", "disk"):
        world.append(name, 3, tags=["a"])
    world.settle()
    for name in ("fsync", "disk"):
        world.delete(name, tag="a")
        world.delete(name, before=1000)
        world.append(name, 3, tags=["a"])
    world.advance(20)
    for _ in range(2):
        world.crash(CrashMode.DROP)
        world.judge()
        for name in ("fsync", "disk"):
            assert [record.seq for record in world.read(name).records] == [4, 5, 6]


def test_flags_reach_the_disk_once_a_checkpoint_shows_the_delete() -> None:
    """proves: G-DEL-4, G-DEL-6"""
    world = World().start(segment_max_events=4)
    world.put("fsync", "fsync")
    world.settle()
    world.append("fsync", 8)
    world.settle()
    assert world.checkpoint()
    path = "/data/topics/00000001/seg-0000000000000001.data"
    before = world.disk.open(path).pread(1 << 16, 0)
    world.delete("fsync", seqs=[2])
    world.settle()
    assert world.disk.open(path).pread(1 << 16, 0) == before
    assert world.checkpoint()
    after = world.disk.open(path).pread(1 << 16, 0)
    changed = [place for place in range(len(before)) if before[place] != after[place]]
    assert [after[place] for place in changed] == [0xD5]
    world.crash(CrashMode.DROP)
    world.judge()
