"""Crashes inside recovery itself, kills, and who may recover at all."""

import random

import pytest

from driftq.errors import DataDirLockedError
from driftq.testing import CrashMode
from tests.crash import scenarios
from tests.crash.sweep import ALL, SHARES, Swept, recovering, require_clean, run, sweep
from tests.crash.world import World

pytestmark = pytest.mark.crash


def test_a_crash_at_any_call_of_a_recovery_changes_nothing() -> None:
    """Crashes of other scenarios are recovered, each disk call of those recoveries is crashed again.

    proves: G-REC-1, G-REC-2, G-REC-3, G-REC-5, G-DUR-5
    """
    swept = Swept()
    rng = random.Random(1)
    runs = [scenarios.checkpoint, scenarios.relocate, scenarios.retention, scenarios.restarts, scenarios.shards]
    for left, scenario in zip(range(len(runs), 0, -1), runs, strict=True):
        images = recovering(run(scenario, seed=left).images, rng, 40 if ALL else 8)
        sweep(images, states=-(-(SHARES["recover"] - len(swept.states)) // left), swept=swept)
    require_clean("recover", swept)


def test_what_was_shown_behind_a_kill_survives_a_power_loss() -> None:
    """The page cache outlives a killed process. What the next one has found there and shown, it has to make durable.

    proves: G-DUR-5, G-REC-2
    """
    world = World().start()
    for name in ("disk", "memory"):
        world.put(name, name)
    world.settle()
    for name in ("disk", "memory"):
        world.append(name, 3)
    world.settle()
    world.kill()
    assert [record.seq for record in world.read("memory").records] == [1, 2, 3]
    world.crash(CrashMode.DROP)
    world.judge()
    for name in ("disk", "memory"):
        assert [record.seq for record in world.read(name).records] == [1, 2, 3]


def test_a_kill_at_any_call_of_the_first_start_leaves_nothing_undone() -> None:
    """Directories that a killed process made and did not sync are synced by the next: it does not count on its making.

    proves: G-DUR-5, G-REC-3
    """
    for shards in (1, 3):
        first = World(keep_images=True)
        first.start(wal_shards=shards, cold_dir="/cold", segment_max_events=4, hot_retain_segments=0)
        first.put("one", "fsync")
        first.settle()
        first.append("one", 9)
        first.settle()
        first.checkpoint()
        first.advance(6000)
        for image in first.images:
            world = World(image.disk.fork(), ledger=image.ledger.copy(), settings=image.settings)
            world.start()
            world.show()
            if world.engine.catalog.find("one") is None:
                world.put("one", "fsync")
                world.settle()
            world.append("one", 9)
            world.settle()
            assert world.checkpoint()
            world.advance(6000)
            assert world.checkpoint()
            world.crash(CrashMode.DROP)
            world.judge()


def test_a_second_server_on_the_same_directory_is_refused_and_changes_nothing() -> None:
    """proves: G-REC-10"""
    world = World().start()
    world.put("fsync", "fsync")
    world.append("fsync", 2)
    world.settle()
    before = world.disk.state_digest()
    with pytest.raises(DataDirLockedError):
        World(world.disk).start()
    assert world.disk.state_digest() == before
    world.append("fsync", 1)
    world.settle()
    assert len(world.read("fsync").records) == 3
