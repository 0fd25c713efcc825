"""Crashes while topics are deleted and come again."""

import pytest

from driftq.engine.read.topic_page import PageQuery
from driftq.model.tombstone import Reason
from driftq.testing import CrashMode
from tests.crash import scenarios
from tests.crash.reading import page_after
from tests.crash.sweep import run_and_sweep
from tests.crash.world import World

pytestmark = pytest.mark.crash


def test_a_crash_at_any_call_of_a_topic_deletion_brings_nothing_back() -> None:
    """proves: G-DEL-5, G-DUR-7, G-REC-1, G-REC-2, G-KEY-2"""
    run_and_sweep("delete_topic", scenarios.delete_topic)


@pytest.mark.parametrize("mode", CrashMode)
def test_a_reader_of_the_old_topic_is_told_that_it_was_recreated(mode: CrashMode) -> None:
    """proves: G-TOMB-4, G-DEL-5, G-KEY-2"""
    world = World().start(segment_max_events=4)
    world.put("one", "fsync")
    world.settle()
    world.append("one", 9, key="k")
    world.settle()
    world.drop("one")
    world.settle()
    world.put("one", "fsync")
    world.settle()
    again = world.append("one", 3, key="k")
    world.settle()
    assert (again.result().first_seq, again.result().deduped) == (1, False)
    world.crash(mode)
    world.judge()
    page = page_after(world.engine, world.runtime, "one", PageQuery(9))
    assert page.tombstone is not None
    assert (page.tombstone.reason, page.tombstone.gap_from, page.tombstone.gap_to) == (Reason.RECREATED, 1, 3)
    assert [record.seq for record in world.read("one").records] == [1, 2, 3]


def test_nothing_of_a_deleted_topic_is_left_on_disk() -> None:
    """Its directory goes, at once and again at the next start where a crash brought it back.

    proves: G-DEL-5
    """
    world = World().start(segment_max_events=4)
    world.put("one", "fsync")
    world.settle()
    world.append("one", 9)
    world.settle()
    assert world.checkpoint()
    world.drop("one")
    world.settle()
    assert world.disk.names("/data/topics") == []
    world.crash(CrashMode.DROP)
    world.settle()
    world.judge()
    assert world.disk.names("/data/topics") == []
