"""Crashes while topics change their durability class in place."""

from itertools import permutations

import pytest

from driftq.model.topic import Durability
from driftq.testing import CrashMode
from tests.crash import scenarios
from tests.crash.sweep import run_and_sweep
from tests.crash.world import World

pytestmark = pytest.mark.crash


def test_a_crash_at_any_call_of_a_class_change_keeps_every_promise() -> None:
    """proves: G-DUR-6, G-DUR-7, G-DUR-1, G-DUR-4, G-REC-1, G-REC-2, G-SEQ-2; inv: 87"""
    run_and_sweep("class_change", scenarios.class_change)


@pytest.mark.parametrize(("before", "after"), [*permutations(Durability, 2)])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_what_was_acked_before_and_behind_a_change_is_kept(
    before: Durability, after: Durability, *, checkpointed: bool
) -> None:
    """proves: G-DUR-6; inv: 87"""
    world = World().start(segment_max_events=6)
    world.put("one", before)
    world.settle()
    world.append("one", 4)
    world.settle()
    world.put("one", after)
    world.append("one", 4)
    world.settle()
    if checkpointed:
        world.checkpoint()
    world.append("one", 1)
    world.settle()
    for mode in CrashMode:
        again = World(world.disk.crash(mode, 1), ledger=world.ledger.copy(), settings=world.settings).start()
        again.judge()
        again.append("one", 1)
        again.settle()
        again.crash(CrashMode.DROP)
        again.judge()
