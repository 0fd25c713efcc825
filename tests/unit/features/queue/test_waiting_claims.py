"""Claims that wait: what wakes them, how they end, and that nothing is granted to a caller who is gone."""

import pytest

from driftq.errors import TopicNotFoundError
from driftq.features.queue.claims import ClaimResult
from driftq.features.queue.waiting_claims import WaitingClaim
from tests.unit.features.queue.rig import QueueRig


@pytest.fixture
def rig() -> QueueRig:
    rig = QueueRig()
    rig.queue()
    return rig


def waiting(
    rig: QueueRig, node: str = "w", limit: int = 1, lease_ms: int | None = None, wait_ms: int = 10_000
) -> WaitingClaim:
    topic, _ = rig.queues.backlog.look("q")
    claim = WaitingClaim(rig.queues.waits, topic, node, limit, lease_ms, wait_ms)
    rig.runtime.run_until_idle()
    return claim


def got(rig: QueueRig, claim: WaitingClaim) -> list[int] | None:
    """The jobs of a claim; None while it waits."""
    rig.runtime.run_until_idle()
    return claim.answer.result().seqs if claim.answer.settled else None


def test_what_is_ready_is_answered_at_once(rig: QueueRig) -> None:
    rig.write("q", 1, 2, 3)
    assert got(rig, waiting(rig, limit=2)) == [1, 2]


def test_an_append_ends_the_wait_and_claims_are_served_in_their_order(rig: QueueRig) -> None:
    first, second, third = waiting(rig, "a", limit=2), waiting(rig, "b"), waiting(rig, "c")
    assert [got(rig, one) for one in (first, second, third)] == [None, None, None]
    rig.write("q", 1, 2, 3)
    assert [got(rig, one) for one in (first, second, third)] == [[1, 2], [3], None]
    rig.write("q", 4)
    assert got(rig, third) == [4]


def test_a_job_that_is_given_back_ends_the_wait(rig: QueueRig) -> None:
    rig.write("q", 1)
    assert rig.claimed(node="other") == [1]
    claim = waiting(rig)
    assert got(rig, claim) is None
    rig.nack("q", 1, node="other")
    assert got(rig, claim) == [1]


@pytest.mark.parametrize("how", ["lease", "delay"])
def test_the_end_of_a_lease_or_a_delay_ends_the_wait(rig: QueueRig, how: str) -> None:
    rig.write("q", 1)
    assert rig.claimed(node="other", lease_ms=1000 if how == "lease" else None) == [1]
    if how == "delay":
        rig.nack("q", 1, node="other", delay_ms=1000)
    claim = waiting(rig)
    rig.runtime.advance(900)
    assert got(rig, claim) is None
    rig.runtime.advance(200)
    assert got(rig, claim) == [1]


def test_a_claim_ends_without_jobs_when_its_time_is_over(rig: QueueRig) -> None:
    claim = waiting(rig, wait_ms=5000)
    rig.runtime.advance(4999)
    assert got(rig, claim) is None
    rig.runtime.advance(2)
    assert got(rig, claim) == []
    rig.write("q", 1)
    assert rig.counters() == (1, 0, 0)


def test_a_node_that_leaves_ends_its_own_claims(rig: QueueRig) -> None:
    mine, other = waiting(rig, "mine"), waiting(rig, "other")
    assert rig.queues.waits.leave("q", "mine") == 1
    assert (got(rig, mine), got(rig, other)) == ([], None)
    assert rig.queues.waits.leave("q", "mine") == 0
    rig.write("q", 1)
    assert got(rig, other) == [1]


def test_a_caller_who_hangs_up_gets_nothing(rig: QueueRig) -> None:
    claim = waiting(rig)
    claim.hang_up()
    rig.write("q", 1)
    assert rig.counters() == (1, 0, 0)


def test_a_job_that_is_being_granted_to_a_caller_who_hangs_up_goes_back(rig: QueueRig) -> None:
    rig.queue("durable", leases_durable=True)
    topic, _ = rig.queues.backlog.look("durable")
    claim = WaitingClaim(rig.queues.waits, topic, "w", 1, None, 10_000)
    rig.write("durable", 1)
    rig.runtime.run_until_idle()
    assert got(rig, claim) == [1]
    rig.write("durable", 2)
    rig.hold_wal()
    late = WaitingClaim(rig.queues.waits, topic, "w", 1, None, 10_000)
    rig.runtime.run_until_idle()
    assert not late.answer.settled
    late.hang_up()
    rig.release_wal()
    assert got(rig, late) == [2]
    assert rig.counters("durable") == (1, 1, 0)


def test_a_claim_of_a_queue_that_is_deleted_is_refused(rig: QueueRig) -> None:
    claim = waiting(rig)
    rig.run(rig.engine.delete_topic("q"))
    rig.runtime.run_until_idle()
    assert isinstance(claim.answer.error, TopicNotFoundError)


def test_a_window_of_claims_is_waited_for_too(rig: QueueRig) -> None:
    rig.queue("cohort", claim_jitter_ms=100)
    topic, _ = rig.queues.backlog.look("cohort")
    claim = WaitingClaim(rig.queues.waits, topic, "w", 1, None, 10_000)
    rig.write("cohort", 1)
    rig.runtime.advance(300)
    assert isinstance(claim.answer.result(), ClaimResult)
    assert got(rig, claim) == [1]
