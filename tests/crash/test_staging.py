"""Crashes among staged parts, commits and named cursors: every batch is there once and whole, whatever is repeated."""

import os
import random

import pytest

from driftq.system.disk import Site
from driftq.testing import CrashMode, SimDisk
from tests.crash.judge import Violation
from tests.crash.staging_world import TOPICS, Image, StagingWorld

pytestmark = pytest.mark.crash

_STATES = 4000 if os.environ.get("CRASH") == "all" else 250
KILL = "kill"


def _scenario(world: StagingWorld) -> None:
    world.create()
    for batch in range(3):
        for name in TOPICS:
            world.publish(name, batch)
        if batch == 0:
            world.settle(20)
            world.engine.checkpointer.run()
            world.settle()
    world.stage("fsync", 3, 0)
    world.stage("fsync", 3, 0)
    world.stage("disk", 3, 1)
    world.settle(20)


def _crashed(disk: SimDisk, mode: str, seed: int) -> SimDisk:
    return disk.fork() if mode == KILL else disk.crash(CrashMode(mode), seed)


def _try(image: Image, mode: str, seed: int) -> None:
    rng = random.Random(seed)
    world = StagingWorld(_crashed(image.disk, mode, seed), image.told.copy())
    world.judge()
    again = StagingWorld(_crashed(world.disk, rng.choice((*CrashMode, KILL)), seed), world.told.copy())
    again.judge()
    again.finish(rng)
    again.settle(20)
    last = StagingWorld(_crashed(again.disk, rng.choice((*CrashMode, KILL)), seed), again.told.copy())
    last.judge()


def _violations(images: list[Image], states: int, *, most: int = 1) -> list[str]:
    rng = random.Random(1)
    found: list[str] = []
    for number in range(states):
        image, mode = rng.choice(images), rng.choice((*CrashMode, KILL))
        try:
            _try(image, mode, number)
        except Exception as failure:  # noqa: BLE001 - whatever a recovery raises is a broken promise
            found.append(f"{image.call}, {mode} {number}: {failure!r}")
            if len(found) == most:
                break
    return found


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_crash_at_any_call_leaves_every_batch_once_and_whole(seed: int | None) -> None:
    """proves: G-STG-1, G-STG-2, G-STG-3, G-STG-4, G-CUR-1"""
    world = StagingWorld(seed=seed, keep_images=True)
    _scenario(world)
    assert not _violations(world.images, _STATES // 3)


@pytest.mark.parametrize("site", [Site.STAGE_FILE, Site.STAGE_DIR], ids=str)
def test_without_its_sync_some_crash_loses_a_part(site: Site) -> None:
    world = StagingWorld(ignore=site, keep_images=True)
    _scenario(world)
    found = _violations(world.images, 400)
    assert found, f"nobody misses {site}"
    assert "was staged, and is gone" in found[0]


def test_what_the_sweep_tries_is_worth_it() -> None:
    """The scenario has crashes between a commit and its sync, and between its sync and the end of its parts."""
    world = StagingWorld(keep_images=True)
    _scenario(world)
    calls = [image.call.split()[0] for image in world.images]
    assert calls.count("unlink") >= 8, "the parts of four batches at least"
    assert any(image.told.committed.get("disk", -1) > image.told.synced.get("disk", -1) for image in world.images)


def test_a_batch_that_is_there_in_part_would_be_noticed() -> None:
    world = StagingWorld()
    world.create()
    world.publish("fsync", 0)
    world.engine.delete_records("fsync", before_seq=2)
    world.settle()
    with pytest.raises(Violation, match="in part"):
        world.judge()
