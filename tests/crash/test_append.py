"""Crashes while records are written, in every class."""

import pytest

from driftq.model.limits import RESERVE_MAX
from driftq.model.tombstone import Reason
from driftq.testing import CrashMode
from tests.crash import scenarios
from tests.crash.sweep import run_and_sweep
from tests.crash.world import World

pytestmark = pytest.mark.crash


def test_a_crash_at_any_call_of_a_write_keeps_what_its_class_promised() -> None:
    """proves: G-DUR-1, G-DUR-2, G-DUR-3, G-DUR-4, G-DUR-5, G-SEQ-1, G-SEQ-2, G-TOMB-2, G-TOMB-5, G-REC-1, G-REC-2

    proves: G-KEY-1; inv: 78, 79
    """
    run_and_sweep("append", scenarios.append, seeds=(None, 1, 2, 3, 4, 6))


def test_a_crash_leaves_all_of_a_large_batch_or_nothing() -> None:
    """proves: G-DUR-1, G-DUR-8, G-SEQ-1, G-REC-5"""
    run_and_sweep("append_large", scenarios.append_large)


@pytest.mark.parametrize("mode", CrashMode)
def test_the_head_of_a_disk_topic_stays_close_to_what_was_acked(mode: CrashMode) -> None:
    """However fast it is written, a crash leaves a hole of at most the largest reservation.

    proves: G-SEQ-2, G-SEQ-4, G-DUR-2, G-TOMB-2
    """
    world = World(order=False).start(wal_file_bytes=1 << 20, segment_max_events=100_000)
    world.put("disk", "disk")
    world.settle()
    for _ in range(30):
        world.append("disk", 3000)
        world.runtime.turn()
    world.runtime.run_until_idle()
    acked = max(seq for _, seq in world.ledger.acked)
    assert acked == 90_000
    world.crash(mode, 1)
    world.judge()
    topic = world.engine.topic("disk")
    assert acked <= topic.head <= acked + RESERVE_MAX
    assert [hole.reason for hole in topic.holes.all] == [Reason.CRASH]
    pending = world.append("disk")
    world.settle()
    assert pending.result().first_seq == topic.holes.all[0].last + 1


def test_an_idle_disk_topic_leaves_no_hole() -> None:
    """proves: G-SEQ-2, G-TOMB-10"""
    world = World(order=False).start(wal_file_bytes=1 << 20, segment_max_events=100_000)
    world.put("disk", "disk")
    world.settle()
    for _ in range(10):
        world.append("disk", 3000)
        world.settle()
    world.advance(65_000)
    world.crash(CrashMode.DROP)
    world.judge()
    topic = world.engine.topic("disk")
    assert (topic.head, topic.holes.all) == (30_000, [])


def test_a_key_ends_with_its_window_over_a_crash() -> None:
    """proves: G-KEY-1, G-KEY-2"""
    world = World().start()
    world.put("fsync", "fsync", idempotency_window_ms=5000)
    world.settle()
    first = world.append("fsync", 2, key="k")
    world.settle()
    world.advance(3000)
    world.crash(CrashMode.DROP)
    again = world.append("fsync", 2, key="k")
    world.settle()
    assert again.result().deduped
    assert again.result().first_seq == first.result().first_seq
    world.advance(3000)
    world.crash(CrashMode.DROP)
    later = world.append("fsync", 2, key="k")
    world.settle()
    assert not later.result().deduped
    assert later.result().first_seq == 3
