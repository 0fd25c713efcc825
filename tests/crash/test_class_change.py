"""Crashes while topics change their durability class in place."""

from itertools import permutations

import pytest

from driftq.model.topic_config import Durability
from driftq.testing import CrashMode
from tests.crash import scenarios
from tests.crash.sweep import run_and_sweep
from tests.crash.world import World

pytestmark = pytest.mark.crash


def test_a_crash_at_any_call_of_a_class_change_keeps_every_promise() -> None:
    """proves: G-DUR-6, G-DUR-7, G-DUR-1, G-DUR-4, G-REC-1, G-REC-2, G-SEQ-2; inv: 87"""
    run_and_sweep("class_change", scenarios.class_change)


def test_a_crash_at_any_call_keeps_the_floors_of_topics_with_an_ephemeral_time() -> None:
    """proves: G-TOMB-6, G-TOMB-5, G-DUR-6, G-REC-1, G-REC-2"""
    run_and_sweep("mixed_classes", scenarios.mixed_classes)


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


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("after", ["fsync", "disk", "memory"])
@pytest.mark.parametrize("limit", [{"cap_records": 7}, {"cap_bytes": 60}, {"ttl_ms": 2000}])
def test_a_floor_over_records_that_no_log_has_stays_where_it_was(
    limit: dict[str, int], after: str, *, checkpointed: bool
) -> None:
    """proves: G-TOMB-6, G-DUR-6"""
    world = World().start(segment_max_events=6)
    world.put("one", "ephemeral")
    world.settle()
    world.append("one", 8)
    world.settle()
    world.advance(1990)
    world.append("one", 8)
    world.settle()
    world.put("one", after, **limit)
    world.settle()
    if checkpointed:
        world.checkpoint()
    for _ in range(3):
        world.append("one", 1)
        world.advance(10)
    floor = world.engine.topic("one").evict_floor
    assert floor > 8
    for mode in CrashMode:
        again = World(world.disk.crash(mode, 1), ledger=world.ledger.copy(), settings=world.settings).start()
        again.judge()
        assert again.engine.topic("one").evict_floor >= floor


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("after", ["ephemeral", "fsync"])
def test_what_records_without_a_log_pushed_out_does_not_come_back(after: str, *, checkpointed: bool) -> None:
    """proves: G-TOMB-6, G-DUR-6"""
    world = World().start(segment_max_events=3)
    world.put("one", "fsync")
    world.settle()
    world.append("one", 5)
    world.settle()
    world.put("one", "ephemeral", cap_records=12)
    world.append("one", 10)
    world.settle()
    assert world.engine.topic("one").earliest == 4
    if checkpointed:
        world.checkpoint()
    world.append("one", 1)
    world.settle()
    world.put("one", after, cap_records=12)
    world.append("one", 1)
    world.settle()
    assert world.engine.topic("one").earliest == 6
    for mode in CrashMode:
        again = World(world.disk.crash(mode, 1), ledger=world.ledger.copy(), settings=world.settings).start()
        again.judge()
        assert not [record for record in again.read("one").records if record.seq <= 5]
