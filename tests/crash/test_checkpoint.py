"""Crashes while a checkpoint is taken, and at a graceful stop."""

import pytest

from driftq.model.topic_config import Durability
from driftq.testing import CrashMode
from tests.crash import scenarios
from tests.crash.reading import differences
from tests.crash.sweep import run, run_and_sweep
from tests.crash.world import World

pytestmark = pytest.mark.crash


def test_a_crash_at_any_call_of_a_checkpoint_leaves_one_usable_state() -> None:
    """proves: G-CKPT-1, G-CKPT-2, G-DUR-1, G-DUR-4, G-REC-1, G-REC-2, G-REC-8, G-KEY-1"""
    run_and_sweep("checkpoint", scenarios.checkpoint)


def test_a_crash_at_any_call_of_a_graceful_stop_is_a_crash_like_any_other() -> None:
    """proves: G-CKPT-1, G-DUR-1, G-REC-1, G-REC-2"""
    run_and_sweep("graceful", scenarios.graceful)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "with a checkpoint under way"])
def test_a_graceful_stop_leaves_exact_heads_and_no_hole(*, busy: bool) -> None:
    """proves: G-DUR-4, G-DUR-10, G-KEY-1"""
    world = World().start(segment_max_events=6)
    for name in Durability:
        world.put(name, name)
    world.settle()
    for name in Durability:
        world.append(name, 9, tags=["a", None], key="k")
    world.settle()
    world.delete("disk", seqs=[3])
    world.append("memory", 2)
    world.settle()
    before = world.picture()
    if busy:
        world.engine.checkpointer.run()
    world.close()
    world.judge()
    after = world.picture()
    for topic in (before["topics"], after["topics"]):
        del topic["ephemeral"]["earliest"], topic["ephemeral"]["last_ts"]
        for field in ("count", "payload", "records", "keys"):
            topic["ephemeral"][field] = None
        topic["disk"]["reserved"] = topic["disk"]["head"]
    assert not differences(before["topics"], after["topics"])
    assert world.engine.topic("ephemeral").head == 9
    assert not world.read("ephemeral").records


def test_a_kill_before_a_checkpoint_is_durable_does_not_build_on_sand() -> None:
    """The next process finds the renamed file. It makes it durable before it removes what that no longer names.

    proves: G-CKPT-1, G-CKPT-2, G-DUR-5
    """
    for scenario in (scenarios.checkpoint, scenarios.graceful, scenarios.retention):
        renames = [image for image in run(scenario).images if image.call.startswith("rename")]
        assert renames
        for image in renames:
            world = World(image.disk.fork(), ledger=image.ledger.copy(), wall_ms=image.wall_ms, settings=image.settings)
            world.start()
            world.judge()
            world.settle()
            first = world.picture()
            world.write_back("/data/topics")
            world.crash(CrashMode.DROP)
            assert not differences(first, world.picture())
            world.judge()


def test_in_steady_state_one_checkpoint_and_the_wal_behind_it_remain() -> None:
    """proves: G-CKPT-2"""
    world = World().start(segment_max_events=6, wal_file_bytes=2048)
    world.put("fsync", "fsync")
    world.settle()
    for _ in range(4):
        for _ in range(6):
            world.append("fsync", 2, padding=200)
            world.settle()
        assert world.checkpoint()
        assert len(world.disk.names("/data/meta")) == 1
        assert len([name for name in world.disk.names("/data/wal") if name.startswith("wal-")]) <= 2
    world.crash(CrashMode.DROP)
    world.judge()


def test_a_segment_that_is_dropped_unread_by_the_next_checkpoint_is_named_by_none() -> None:
    """All records of a named active segment are deleted, and its age ends it: no checkpoint may name its files then.

    proves: G-CKPT-2, G-DEL-3
    """
    world = World().start(segment_max_events=1000, segment_max_age_ms=10_000)
    world.put("fsync", "fsync")
    world.settle()
    world.append("fsync", 260, tags=["a"])
    world.settle()
    assert world.checkpoint()
    world.delete("fsync", tag="a")
    world.settle()
    assert world.checkpoint()
    world.advance(12_000)
    assert world.checkpoint()
    world.advance(2000)
    world.crash(CrashMode.DROP)
    world.judge()
    world.append("fsync", 2)
    world.settle()
    assert world.checkpoint()
    world.crash(CrashMode.DROP)
    world.judge()
