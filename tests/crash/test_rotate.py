"""Crashes while the WAL goes from file to file."""

import pytest

from driftq.testing import CrashMode
from tests.crash import scenarios
from tests.crash.sweep import run_and_sweep
from tests.crash.world import World

pytestmark = pytest.mark.crash


def test_a_crash_at_any_call_of_a_rotation_loses_nothing_acked() -> None:
    """proves: G-DUR-1, G-DUR-2, G-REC-1, G-REC-2, G-REC-5, G-TOMB-2"""
    run_and_sweep("rotate", scenarios.rotate, seeds=(None, 1, 2, 3, 4, 5))


def test_a_file_that_is_prepared_late_is_not_made_again() -> None:
    """The thread that makes files ahead of their use comes behind the writer, which has made and filled its own.

    proves: G-DUR-1, G-DUR-5
    """
    world = World().start(wal_file_bytes=2048)
    world.put("fsync", "fsync")
    world.settle()
    world.runtime.hold("driftq-wal-prepare-0")
    for _ in range(12):
        world.append("fsync", 2, padding=100)
        world.settle()
    world.runtime.release("driftq-wal-prepare-0")
    world.settle()
    for mode in CrashMode:
        again = World(world.disk.crash(mode, 1), ledger=world.ledger.copy(), settings=world.settings).start()
        again.judge()
    world.kill()
    world.judge()
