"""Ack, nack, extend: who may, what is skipped, what the counters say, and what a failing log leaves behind."""

import pytest

from driftq.errors import InternalError, ShuttingDownError, TopicNotFoundError
from driftq.model.topic_config import Durability
from driftq.testing import CrashMode, FaultyDisk
from tests.unit.features.queue.rig import LONG_MS, QueueRig


@pytest.fixture
def rig() -> QueueRig:
    rig = QueueRig()
    rig.queue(jobs=6)
    return rig


class Failing(QueueRig):
    """Its log cannot be written, or not be synced, as soon as it is `armed`."""

    def __init__(self, operation: str = "pwritev", **options: object) -> None:
        self.armed = False
        super().__init__(
            wrap=lambda disk: FaultyDisk(
                disk, when=lambda called, path: self.armed and called == operation and "wal-" in path
            ),
            **options,
        )


def test_an_ack_deletes_for_good_and_in_silence(rig: QueueRig) -> None:
    rig.claimed(limit=2)
    assert rig.ack("q", 1, 2) == (2, [], 4, 0, True)
    records, tombstones = rig.walk("q")
    assert ([record["$seq"] for record in records], tombstones) == ([3, 4, 5, 6], [])


def test_what_the_node_does_not_hold_is_skipped_in_the_order_of_the_request(rig: QueueRig) -> None:
    rig.claimed(limit=2)
    rig.claimed(limit=2, node="other")
    done = rig.ack("q", 6, 2, 3, 99, 2, 1, 0)
    assert (done.done, done.skipped, done.ready, done.in_flight) == (2, [6, 3, 99, 2, 0], 2, 2)
    assert rig.ack("q", 1, 2).skipped == [1, 2]


def test_an_ack_at_the_deadline_is_in_time_and_one_behind_it_is_not(rig: QueueRig) -> None:
    """inv: 65"""
    rig.claimed(limit=2, lease_ms=1000)
    rig.runtime.advance(1000)
    assert rig.ack("q", 1).done == 1
    rig.runtime.advance(1)
    assert rig.ack("q", 2) == (0, [2], 5, 0, False)


def test_an_ack_of_a_deleted_job_is_skipped(rig: QueueRig) -> None:
    rig.claimed(limit=3)
    rig.run(rig.engine.delete_records("q", seqs=[2]))
    assert rig.counters() == (3, 2, 0)
    done = rig.ack("q", 1, 2, 3)
    assert (done.done, done.skipped) == (2, [2])


def test_counters_add_up_whatever_happens(rig: QueueRig) -> None:
    """inv: 67"""

    def counted() -> tuple[int, int, int]:
        ready, in_flight, _ = rig.counters()
        return ready, in_flight, rig.topic("q").count - ready - in_flight

    rig.write("q", 7, 8, 9, 10)
    rig.claimed(limit=6)
    assert counted() == (4, 6, 0)
    rig.nack("q", 1, 2, delay_ms=60_000)
    assert counted() == (4, 4, 2)
    rig.nack("q", 3)
    assert counted() == (5, 3, 2)
    rig.ack("q", 4)
    assert counted() == (5, 2, 2)
    rig.delete("q", before_seq=2)
    assert counted() == (5, 2, 1)
    rig.delete("q", before_seq=6)
    assert counted() == (4, 1, 0)
    rig.write("q", 11)
    assert counted() == (5, 1, 0)


def test_a_job_under_ack_is_in_flight_and_not_to_be_had(rig: QueueRig) -> None:
    rig.claimed(limit=2, lease_ms=1000)
    rig.hold_wal()
    ack = rig.ack_nowait("q", 1)
    rig.runtime.advance(2000)
    assert rig.counters() == (5, 1, 0)
    assert rig.claim_nowait(limit=9).result().seqs == [2, 3, 4, 5, 6]
    assert rig.ack_nowait("q", 1).result().skipped == [1]
    rig.release_wal()
    assert ack.result().done == 1
    assert rig.counters() == (0, 5, 0)


@pytest.mark.parametrize("operation", ["pwritev", "sync"])
def test_an_ack_that_cannot_be_committed_makes_its_jobs_claimable(operation: str) -> None:
    rig = Failing(operation)
    rig.queue(jobs=3)
    rig.claimed(limit=2)
    rig.armed = True
    with pytest.raises(InternalError):
        rig.ack("q", 1, 2)
    assert (rig.counters(), rig.seqs("q")) == ((3, 0, 0), [1, 2, 3])
    assert [(job["$seq"], job["deliveries"]) for job in rig.claim(limit=9)] == [(1, 2), (2, 2), (3, 1)]


def test_an_ack_on_a_stopped_log_makes_its_jobs_claimable() -> None:
    rig = Failing("sync")
    rig.queue(jobs=2)
    rig.claimed(limit=2)
    rig.armed = True
    with pytest.raises(InternalError):
        rig.write("q", 3)
    with pytest.raises(InternalError):
        rig.ack("q", 1)
    assert rig.counters() == (1, 1, 0)


def test_a_refused_ack_changes_nothing(rig: QueueRig) -> None:
    rig.claimed()
    rig.engine.close()
    with pytest.raises(ShuttingDownError):
        rig.ack_nowait("q", 1)
    assert rig.counters() == (5, 1, 0)


def test_only_the_fsync_class_waits_for_a_sync() -> None:
    rig = QueueRig()
    for durability in Durability:
        rig.queue(durability, jobs=1, durability=durability)
        rig.claimed(durability)
        assert rig.ack(durability, 1).synced == (durability is Durability.FSYNC)


@pytest.mark.parametrize("mode", CrashMode)
def test_an_fsync_ack_survives_and_what_is_not_acked_is_claimable(rig: QueueRig, mode: CrashMode) -> None:
    rig.claimed(limit=4)
    rig.ack("q", 1, 3)
    rig.nack("q", 2)
    rig.crash(mode, 1)
    assert rig.counters() == (4, 0, 0)
    assert [(job["$seq"], job["deliveries"]) for job in rig.claim(limit=9)] == [(2, 1), (4, 1), (5, 1), (6, 1)]


def test_a_topic_that_goes_while_a_job_is_acked_takes_it_along(rig: QueueRig) -> None:
    rig.claimed()
    rig.hold_wal()
    rig.engine.delete_topic("q")
    late = rig.ack_nowait("q", 1)
    rig.release_wal()
    with pytest.raises(TopicNotFoundError):
        late.result()
    rig.queue(jobs=1)
    assert (rig.counters(), rig.ack("q", 1).skipped) == ((1, 0, 0), [1])


def test_a_connection_that_outlives_its_topic_leaves_no_table_behind(rig: QueueRig) -> None:
    topic = rig.topic("q")
    rig.run(rig.engine.delete_topic("q"))
    rig.queues.settler.release(topic, [1])
    rig.restart()
    assert rig.engine.catalog.find("q") is None


# Nack


def test_a_nacked_job_is_back_at_once(rig: QueueRig) -> None:
    rig.claimed(limit=2)
    assert rig.nack("q", 2, 2, 9) == (1, [2, 9], 5, 1, False)
    (job,) = rig.claim(node="b")
    assert (job["$seq"], job["deliveries"]) == (2, 2)


def test_a_delayed_job_is_in_neither_counter_and_then_before_fresh_ones(rig: QueueRig) -> None:
    """inv: 66"""
    rig.claimed()
    assert rig.nack("q", 1, delay_ms=2000)[2:4] == (5, 0)
    assert rig.ack("q", 1).skipped == [1]
    rig.runtime.advance(1999)
    assert rig.claimed() == [2]
    rig.runtime.advance(1)
    assert rig.counters() == (5, 1, 0)
    (job,) = rig.claim()
    assert (job["$seq"], job["deliveries"]) == (1, 2)


def test_a_delay_has_an_end(rig: QueueRig) -> None:
    rig.claimed()
    rig.nack("q", 1, delay_ms=1 << 63)
    rig.clock.advance(86_400_000)
    assert rig.claimed() == [1]


# Extend


def test_an_extension_sets_another_deadline_and_nothing_else(rig: QueueRig) -> None:
    (job,) = rig.claim(lease_ms=1000)
    rig.runtime.advance(900)
    found = rig.extend("q", 1, 2, 1, lease_ms=5000)
    assert found == ({1: rig.clock.wall_ms() + 5000}, [2, 1])
    rig.runtime.advance(5000)
    assert rig.ack("q", 1, tokens=(job["lease_id"],)).done == 1


def test_an_extension_may_shorten_and_is_clamped(rig: QueueRig) -> None:
    rig.claimed()
    assert rig.extend("q", 1, lease_ms=0).deadlines == {1: rig.clock.wall_ms() + 100}
    rig.runtime.advance(101)
    assert rig.extend("q", 1).skipped == [1]
    assert rig.claim()[0]["deliveries"] == 2


def test_a_stale_token_is_skipped_by_all_three(rig: QueueRig) -> None:
    """inv: 68"""
    (stale,) = rig.claim()
    rig.nack("q", 1)
    (current,) = rig.claim()
    old = (stale["lease_id"],)
    assert rig.ack("q", 1, tokens=old).skipped == [1]
    assert rig.nack("q", 1, tokens=old).skipped == [1]
    assert rig.extend("q", 1, tokens=old).skipped == [1]
    assert rig.extend("q", 1, tokens=(current["lease_id"],)).deadlines.keys() == {1}
    assert rig.ack("q", 1, tokens=(current["lease_id"],)).done == 1


def test_nacks_and_extensions_that_cannot_be_logged_change_nothing() -> None:
    rig = Failing()
    rig.queue(jobs=2, leases_durable=True)
    rig.claimed(limit=2, lease_ms=LONG_MS)
    before = rig.projection()
    rig.armed = True
    with pytest.raises(InternalError):
        rig.nack("q", 1)
    assert rig.projection() == before
    assert rig.ack("q", 1).done == 1
