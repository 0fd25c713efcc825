"""`leases_durable`: who holds what is the same after a restart, whatever kind of restart, checkpoints included."""

import pytest

from driftq.features.queue.lease_log import LeaseLog
from driftq.model.topic_config import Durability
from driftq.testing import CrashMode
from tests.unit.features.queue.rig import LONG_MS, QueueRig


@pytest.fixture
def rig() -> QueueRig:
    rig = QueueRig()
    rig.queue(jobs=8, leases_durable=True)
    return rig


def some_history(rig: QueueRig) -> None:
    """Claims, an ack, nacks now and later, an extension, a lease that ran out, and one that was given out again."""
    rig.claimed(limit=2, node="a")
    rig.nack("q", 1, node="a")
    rig.claimed(limit=1, node="b")
    rig.claimed(limit=3, node="a", lease_ms=1000)
    rig.ack("q", 4, node="a")
    rig.extend("q", 3, node="a", lease_ms=90_000)
    rig.nack("q", 2, node="a", delay_ms=50_000)
    rig.runtime.advance(1001)
    rig.claimed(limit=2, node="c")


@pytest.mark.parametrize("mode", CrashMode)
def test_the_projection_is_the_same_after_a_crash(rig: QueueRig, mode: CrashMode) -> None:
    some_history(rig)
    before = rig.projection()
    rig.crash(mode, 5)
    assert rig.projection() == before


def test_a_checkpoint_carries_it_and_the_frames_behind_it_count_once(rig: QueueRig) -> None:
    some_history(rig)
    rig.checkpoint()
    rig.nack("q", 1, node="b")
    rig.claimed(limit=2, node="d")
    before = rig.projection()
    rig.crash()
    assert rig.projection() == before
    rig.restart()
    assert rig.projection() == before
    rig.restart(wal_shards=3)
    assert rig.projection() == before


def test_what_was_given_back_stays_so(rig: QueueRig) -> None:
    rig.claimed(limit=5)
    rig.nack("q", 4, 2)
    rig.restart()
    assert [(job["$seq"], job["deliveries"]) for job in rig.claim(limit=3)] == [(2, 2), (4, 2), (6, 1)]


def test_a_claim_is_answered_behind_the_commit_point_of_its_class(rig: QueueRig) -> None:
    rig.hold_wal()
    claim = rig.claim_nowait(limit=2)
    rig.runtime.run_until_idle()
    assert (claim.settled, rig.counters()) == (False, (8, 0, 0))
    other = rig.claim_nowait(limit=2)
    rig.release_wal()
    assert (claim.result().seqs, other.result().seqs) == ([1, 2], [3, 4])
    assert rig.counters() == (4, 4, 0)


def test_one_frame_per_call_however_many_jobs(rig: QueueRig) -> None:
    rig.claimed()
    (shard,) = rig.engine.shards.all
    before = shard.counters.frames
    rig.claimed(limit=5)
    rig.extend("q", 1, 2, 3, 4, 5)
    rig.nack("q", 1, 2, 3, 4, 5)
    rig.claimed(limit=8)
    rig.ack("q", *range(1, 9))
    assert shard.counters.frames == before + 5, "an extension of the jobs of two claims is one call, too"


def test_a_lease_that_ran_out_is_logged_by_whoever_sees_it(rig: QueueRig) -> None:
    """So that it stays so even if the clock goes back meanwhile."""
    rig.claimed(lease_ms=1000)
    rig.runtime.advance(1001)
    assert rig.counters() == (8, 0, 0)
    rig.runtime.run_until_idle()
    rig.clock.set_wall(rig.clock.wall_ms() - 5000)
    rig.kill()
    assert rig.counters() == (8, 0, 0)
    assert [(job["$seq"], job["deliveries"]) for job in rig.claim()] == [(1, 2)]


def test_a_deadline_that_passes_while_the_server_is_down_has_passed(rig: QueueRig) -> None:
    rig.claimed(lease_ms=LONG_MS)
    rig.claimed(limit=2, lease_ms=2000)
    rig.extend("q", 2, lease_ms=LONG_MS)
    rig.runtime.stop()
    rig.clock.advance(2001)
    rig.kill()
    assert [(job["$seq"], job["deliveries"]) for job in rig.claim(limit=2)] == [(3, 2), (4, 1)]


def test_a_clock_that_goes_back_over_a_restart_ends_no_lease(rig: QueueRig) -> None:
    rig.claimed(lease_ms=1000)
    rig.clock.set_wall(rig.clock.wall_ms() - 500_000)
    rig.kill()
    assert rig.counters() == (7, 1, 0)


def test_jobs_that_were_deleted_behind_the_checkpoint_are_nobodys(rig: QueueRig) -> None:
    rig.claimed(limit=4)
    rig.checkpoint()
    rig.ack("q", 1, 2)
    rig.delete("q", before_seq=4)
    before = rig.projection()
    assert list(before["held"]) == [4]
    rig.crash()
    assert rig.projection() == before


def test_leases_that_are_not_durable_are_forgotten(rig: QueueRig) -> None:
    rig.queue("plain", jobs=3)
    rig.queue("short", jobs=3, durability=Durability.EPHEMERAL, leases_durable=True)
    rig.claimed("plain", limit=2)
    rig.claimed("short", limit=2)
    rig.restart()
    assert (rig.counters("plain"), rig.counters("short")) == ((3, 0, 0), (0, 0, 0))
    assert [job["deliveries"] for job in rig.claim("plain", limit=3)] == [1, 1, 1]


def test_leases_from_before_they_were_durable_are_logged_with_the_first_that_is(rig: QueueRig) -> None:
    rig.queue("late", jobs=5)
    rig.claimed("late", limit=2, node="a")
    rig.nack("late", 2, node="a")
    rig.queue("late", leases_durable=True)
    rig.claimed("late", limit=2, node="b")
    before = rig.projection("late")
    rig.crash()
    assert rig.projection("late") == before
    assert sorted(before["held"]) == [1, 2, 3]


def test_what_happened_while_they_were_not_durable_is_not_undone(rig: QueueRig) -> None:
    rig.claimed(node="a")
    rig.queue(leases_durable=False)
    rig.nack("q", 1, node="a")
    rig.claimed(node="b")
    rig.queue(leases_durable=True)
    rig.claimed(node="c")
    before = rig.projection()
    rig.crash()
    assert rig.projection() == before
    rig.queue(leases_durable=False)
    rig.crash()
    rig.queue(leases_durable=True)
    assert rig.counters() == (8, 0, 0), "the start forgot them"


def test_leases_end_with_their_topic(rig: QueueRig) -> None:
    rig.claimed(limit=3)
    rig.run(rig.engine.delete_topic("q"))
    rig.queue(jobs=2, leases_durable=True)
    assert rig.counters() == (2, 0, 0)
    rig.crash()
    assert rig.counters() == (2, 0, 0)


def test_dead_letters_are_counted_in_the_checkpoint(rig: QueueRig) -> None:
    rig.queue("poison", jobs=1, max_deliveries=1, dead_letter="dead")
    rig.claimed("poison")
    rig.nack("poison", 1)
    rig.claimed("poison")
    rig.restart()
    assert rig.counters("poison") == (0, 0, 1)


def test_a_table_that_says_nothing_is_not_in_the_checkpoint(rig: QueueRig) -> None:
    (lease_log,) = rig.features
    assert isinstance(lease_log, LeaseLog)
    rig.queue("plain", jobs=1)
    rig.claimed("plain")
    assert lease_log.capture() == b"\x90"
