"""Crashes while segments are written and sealed."""

import pytest

from driftq.testing import CrashMode
from tests.crash import scenarios
from tests.crash.sweep import run_and_sweep
from tests.crash.world import World

pytestmark = pytest.mark.crash


def test_a_crash_at_any_call_of_a_seal_loses_nothing_acked() -> None:
    """proves: G-SEG-1, G-DUR-1, G-DUR-3, G-REC-1, G-REC-2, G-DEL-1"""
    run_and_sweep("seal", scenarios.seal)


def test_a_segment_that_is_sealed_again_after_a_crash_has_its_new_content() -> None:
    """An index or tags of the first seal, which the crash left behind, are never taken for those of the second.

    proves: G-SEG-1, G-DUR-2, G-DUR-3
    """
    run_and_sweep("reseal", scenarios.reseal)


def test_files_that_no_checkpoint_names_are_cleaned_up() -> None:
    """Halves of segments, and whole ones that the WAL has too, are written anew from the WAL.

    proves: G-SEG-1
    """
    world = World(order=False).start(segment_max_events=4)
    world.put("fsync", "fsync")
    world.settle()
    world.append("fsync", 3)
    world.settle()
    directory = "/data/topics/00000001"
    world.disk.mkdir(directory)
    for name in ("seg-0000000000000001.idx", "seg-0000000000000009.data", "seg-0000000000000009.tags"):
        world.disk.create(f"{directory}/{name}").pwritev([b"left over"], 0)
    world.crash(CrashMode.KEEP)
    world.settle()
    world.judge()
    assert world.disk.names(directory) == []
