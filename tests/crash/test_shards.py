"""Crashes while the number of shards changes."""

import pytest

from driftq.testing import CrashMode
from tests.crash import scenarios
from tests.crash.reading import differences
from tests.crash.sweep import SHARES, run, run_and_sweep
from tests.crash.world import World

pytestmark = pytest.mark.crash


def test_a_crash_at_any_call_with_changing_shard_counts_loses_nothing_acked() -> None:
    """proves: G-REC-4, G-DUR-1, G-DUR-5, G-REC-1, G-REC-2"""
    run_and_sweep("shards", scenarios.shards)


def test_one_crash_behind_the_other_loses_nothing_acked() -> None:
    """proves: G-SEQ-2, G-DUR-2, G-DUR-3, G-TOMB-8, G-REC-2, G-REC-4"""
    run_and_sweep("restarts", scenarios.restarts)


def test_a_new_file_whose_entry_is_lost_leaves_no_gap() -> None:
    """A killed process made a WAL file and did not sync its entry; the next one, with other shards, numbers on from it.

    proves: G-REC-4, G-DUR-5
    """
    made = [image for image in run(scenarios.shards).images if image.call.startswith("create /data/wal")]
    for count, image in enumerate(made):
        world = World(image.disk.fork(), ledger=image.ledger.copy(), wall_ms=image.wall_ms, settings=image.settings)
        world.start(wal_shards=1 + count % 3)
        world.show()
        for topic in list(world.engine.catalog.visible()):
            world.append(topic.name, 2)
        world.settle()
        world.crash(CrashMode.DROP)
        world.judge()


@pytest.mark.parametrize("mode", CrashMode)
def test_any_row_of_shard_counts_finds_the_identical_state(mode: CrashMode) -> None:
    """proves: G-REC-4, G-REC-2; inv: 83"""
    image = run(scenarios.class_change).images[-1]
    world = World(image.disk.crash(mode, 5), ledger=image.ledger, wall_ms=image.wall_ms, settings=image.settings)
    world.start(wal_shards=1)
    first = world.picture()
    for count in (4, 7, 1, 2, 1):
        world.crash(mode, count, wal_shards=count)
        assert not differences(first, world.picture())
        world.judge()


def test_the_sweeps_try_ten_thousand_states() -> None:
    """Each sweep asserts its own share, so that they may run in any process."""
    assert sum(SHARES.values()) >= 10_000
