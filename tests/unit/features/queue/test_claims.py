"""Claims: supply, order, deadlines, what is skipped, cohorts, dead letters, waiting for blocks and for copies."""

from typing import Any

import pytest
from msgspec import structs

from driftq.engine.state.topic import Topic
from driftq.errors import InternalError, NotAQueueError, TopicNotFoundError
from driftq.model.topic_config import Discard, Durability
from driftq.system.runtime import Pending
from driftq.testing import FaultyDisk
from driftq.testing.engine_rig import SMALL
from tests.unit.features.queue.rig import LONG_MS, QueueRig, decoded


@pytest.fixture
def rig() -> QueueRig:
    return QueueRig()


def test_a_claim_shows_the_job_and_its_lease(rig: QueueRig) -> None:
    rig.queue(lease_ms=5000)
    rig.write("q", {"n": 1}, tags=['"t"'], metas=[b'{"k":"v"}'])
    rig.write("q", None)
    now = rig.clock.wall_ms()
    first, second = rig.claim(limit=5)
    token = first.pop("lease_id")
    assert first == {
        "$seq": 1,
        "$ts": now,
        "$tag": '"t"',
        "meta": {"k": "v"},
        "data": {"n": 1},
        "deadline": now + 5000,
        "deliveries": 1,
    }
    assert token != second.pop("lease_id")
    assert second == {"$seq": 2, "$ts": now, "data": None, "deadline": now + 5000, "deliveries": 1}


def test_what_was_given_back_comes_before_what_is_fresh(rig: QueueRig) -> None:
    rig.queue(jobs=8)
    rig.claimed(limit=5)
    rig.nack("q", 4)
    rig.nack("q", 2)
    assert rig.claimed(limit=3) == [2, 4, 6]
    rig.nack("q", 5, 1)
    assert rig.claimed() == [1]
    assert rig.claimed(limit=2) == [5, 7]


@pytest.mark.parametrize("jitter_ms", [0, 100])
@pytest.mark.parametrize("durable", [False, True])
def test_claims_under_way_together_hand_out_each_job_once(rig: QueueRig, jitter_ms: int, durable: bool) -> None:
    """inv: 64"""
    rig.queue(jobs=50, claim_jitter_ms=jitter_ms, leases_durable=durable)
    rig.hold_wal()
    claims = [rig.claim_nowait(node=f"w{number}", limit=number) for number in range(1, 12)]
    rig.runtime.advance(200)
    rig.release_wal()
    hands = [claim.result().seqs for claim in claims]
    assert all(hand == sorted(set(hand)) for hand in hands)
    assert sorted(seq for hand in hands for seq in hand) == list(range(1, 51))
    assert rig.counters() == (0, 50, 0)


def test_gone_jobs_are_passed_over(rig: QueueRig) -> None:
    rig.queue()
    rig.write("q", *range(1, 8), tags=[f"t{n}" for n in range(1, 8)])
    rig.claimed(limit=2)
    rig.nack("q", 1, 2)
    rig.delete("q", match="t1")
    rig.delete("q", match="t4")
    assert rig.claimed(limit=9) == [2, 3, 5, 6, 7]


def test_evicted_and_expired_jobs_are_passed_over(rig: QueueRig) -> None:
    rig.queue("capped", cap_records=2)
    rig.write("capped", 1, 2, 3, 4)
    assert rig.claimed("capped", limit=9) == [3, 4]
    rig.queue("aging", ttl_ms=200)
    rig.write("aging", 1, 2)
    rig.runtime.advance(201)
    assert rig.claimed("aging", limit=9) == []


def test_leases_of_evicted_jobs_end_with_them(rig: QueueRig) -> None:
    rig.queue(cap_records=3)
    rig.write("q", 1, 2, 3)
    rig.claimed(limit=3)
    rig.write("q", 4, 5)
    assert rig.counters() == (2, 1, 0)
    assert rig.ack("q", 1, 2, 3).skipped == [1, 2]


def test_an_expired_lease_is_another_delivery(rig: QueueRig) -> None:
    """inv: 65"""
    rig.queue(jobs=1)
    (first,) = rig.claim(node="a", lease_ms=1000)
    rig.runtime.advance(1000)
    assert rig.claimed(node="b") == []
    rig.runtime.advance(1)
    (second,) = rig.claim(node="b")
    assert (second["$seq"], second["deliveries"]) == (1, 2)
    assert second["lease_id"] != first["lease_id"]


def test_a_wall_clock_that_steps_back_ends_nothing_early(rig: QueueRig) -> None:
    rig.queue(jobs=2)
    rig.claim(lease_ms=1000)
    rig.clock.set_wall(rig.clock.wall_ms() - 60_000)
    assert rig.counters() == (1, 1, 0)
    (job,) = rig.claim(lease_ms=1000)
    assert job["deadline"] == rig.clock.wall_ms() + 1000


def test_the_cursor_passes_deleted_rows_once(rig: QueueRig) -> None:
    rig.queue(jobs=40)
    rig.delete("q", before_seq=31)
    assert rig.claimed(limit=2) == [31, 32]
    rig.delete("q", before_seq=40)
    assert rig.claimed(limit=2) == [40]
    assert rig.claimed(limit=2) == []
    rig.write("q", 41)
    assert rig.claimed(limit=2) == [41]


def test_what_is_no_queue_is_told(rig: QueueRig) -> None:
    """inv: 71"""
    rig.put("log")
    with pytest.raises(NotAQueueError):
        rig.claim("log")
    with pytest.raises(TopicNotFoundError):
        rig.claim("absent")


def test_lease_ids_are_new_after_a_restart(rig: QueueRig) -> None:
    rig.queue(jobs=1)
    (before,) = rig.claim()
    rig.kill()
    (after,) = rig.claim()
    assert (after["deliveries"], after["lease_id"] != before["lease_id"]) == (1, True)
    assert rig.ack("q", 1, tokens=(before["lease_id"],)).skipped == [1]


# Blocks that are not in memory


def test_a_claim_waits_for_blocks_and_nobody_else_gets_its_jobs() -> None:
    rig = QueueRig(settings=structs.replace(SMALL, cache_bytes=0))
    rig.queue()
    for number in range(1, 65):
        rig.write("q", number)
    rig.restart(cold_dir="/cold", hot_retain_segments=0)
    assert rig.engine.relocation is not None
    rig.engine.relocation.run()
    rig.runtime.run_until_idle()
    rig.runtime.hold("driftq-cold-reads")
    slow = rig.claim_nowait(limit=3)
    rig.runtime.run_until_idle()
    assert not slow.settled
    other = rig.claim_nowait(limit=2)
    rig.run(rig.engine.delete_records("q", seqs=[2]))
    rig.runtime.release("driftq-cold-reads")
    assert [job["$seq"] for job in decoded(rig.run(slow))] == [1, 3]
    assert [job["$seq"] for job in decoded(rig.run(other))] == [4, 5]
    assert rig.counters() == (59, 4, 0)


# Cohorts


def test_a_window_gathers_claims_and_deals_evenly(rig: QueueRig) -> None:
    """inv: 72"""
    rig.queue(jobs=20, claim_jitter_ms=500)
    claims = [rig.claim_nowait(node=f"w{n}", limit=10, lease_ms=1000 + n) for n in range(3)]
    rig.runtime.advance(499)
    claims.append(rig.claim_nowait(node="late", limit=10))
    assert not any(claim.settled for claim in claims)
    rig.runtime.advance(1)
    jobs = [decoded(claim.result()) for claim in claims]
    assert [len(hand) for hand in jobs] == [5, 5, 5, 5]
    assert [job["$seq"] for job in jobs[0]] == [1, 5, 9, 13, 17]
    now = rig.clock.wall_ms()
    assert [hand[0]["deadline"] - now for hand in jobs] == [1000, 1001, 1002, LONG_MS]


def test_when_the_topic_goes_who_opened_the_window_hears_of_it(rig: QueueRig) -> None:
    rig.queue(jobs=5, claim_jitter_ms=500)
    claims = [rig.claim_nowait(node=f"w{n}") for n in range(3)]
    rig.run(rig.engine.delete_topic("q"))
    rig.runtime.advance(500)
    with pytest.raises(TopicNotFoundError):
        claims[0].result()
    assert [claim.result().seqs for claim in claims[1:]] == [[], []]


# Dead letters


def overdelivered(rig: QueueRig, jobs: int, **config: Any) -> None:
    """A queue whose first jobs have had their only delivery."""
    rig.queue(jobs=jobs, max_deliveries=1, dead_letter="dead", **config)


def test_a_job_past_its_deliveries_moves_and_costs_the_claimer_nothing(rig: QueueRig) -> None:
    """inv: 69"""
    overdelivered(rig, 0)
    rig.write("q", "a", tags=["t"], metas=[b'{"k":"v"}'], batch_node="n")
    rig.write("q", "b", "c")
    rig.claimed(limit=2)
    rig.nack("q", 1, 2)
    assert rig.claimed(limit=1) == [3]
    (first, second) = rig.read("dead")
    assert (first["data"], first["$tag"], first["$node"]) == ("a", "t", "n")
    assert first["meta"] == {
        "k": "v",
        "$dead_letter_from": "q",
        "$dead_letter_deliveries": "1",
        "$dead_letter_src_seq": "1",
    }
    assert (second["data"], "$tag" in second) == ("b", False)
    assert (rig.counters(), rig.seqs("q")) == ((0, 1, 2), [3])


def test_the_third_of_two_deliveries_is_a_dead_letter(rig: QueueRig) -> None:
    """inv: 69"""
    rig.queue(jobs=1, max_deliveries=2, dead_letter="dead")
    for delivery in (1, 2):
        assert [job["deliveries"] for job in rig.claim(lease_ms=1000)] == [delivery]
        rig.runtime.advance(1001)
    assert rig.topic("q").count == 1
    assert rig.claim() == []
    assert (rig.topic("q").count, rig.counters()) == (0, (0, 0, 1))
    (letter,) = rig.read("dead")
    assert (letter["data"], letter["meta"]["$dead_letter_src_seq"]) == (1, "1")


def test_a_dead_letter_of_a_dead_letter_has_one_set_of_marks(rig: QueueRig) -> None:
    overdelivered(rig, 1)
    rig.queue("dead", max_deliveries=1, dead_letter="deader")
    rig.claimed()
    rig.nack("q", 1)
    rig.claimed()
    rig.claimed("dead")
    rig.nack("dead", 1)
    rig.claimed("dead")
    (job,) = rig.read("deader")
    assert job["meta"]["$dead_letter_from"] == "dead"


def test_a_job_that_cannot_be_moved_waits_with_its_count(rig: QueueRig) -> None:
    overdelivered(rig, 3)
    rig.put("dead", cap_records=2, discard=Discard.REJECT)
    rig.write("dead", "there")
    rig.claimed(limit=2)
    rig.nack("q", 1, 2)
    assert rig.claimed(limit=5) == [3]
    assert (rig.counters(), rig.seqs("q")) == ((1, 1, 1), [2, 3])
    assert rig.claimed(limit=5) == []
    rig.delete("dead", before_seq=3)
    assert rig.claimed(limit=5) == []
    assert (rig.counters(), rig.seqs("q")) == ((0, 1, 2), [3])
    assert [job["meta"]["$dead_letter_src_seq"] for job in rig.read("dead")] == ["2"]


def test_a_copy_is_safe_before_the_job_is_deleted() -> None:
    """With two logs the copy's is synced first: no crash leaves the job in neither."""
    rig = QueueRig(wal_shards=2)
    rig.put("dead", Durability.DISK)
    rig.queue(jobs=1, max_deliveries=1, dead_letter="dead")
    assert rig.topic("q").id % 2 != rig.topic("dead").id % 2
    rig.claimed()
    rig.nack("q", 1)
    rig.runtime.hold(f"driftq-wal-{rig.topic('dead').id % 2}")
    claim = rig.claim_nowait()
    rig.runtime.run_until_idle()
    assert not claim.settled
    rig.crash()
    assert (rig.seqs("q"), rig.seqs("dead")) == ([1], [])


# Failures, router copies


def test_a_claim_that_cannot_be_logged_gives_its_jobs_back() -> None:
    armed: list[bool] = []
    rig = QueueRig(
        wrap=lambda disk: FaultyDisk(
            disk, when=lambda operation, path: bool(armed) and operation == "pwritev" and "wal-" in path
        )
    )
    rig.queue(jobs=3, leases_durable=True)
    rig.claimed()
    rig.nack("q", 1)
    armed.append(True)
    with pytest.raises(InternalError):
        rig.claim(limit=3)
    assert rig.counters() == (3, 0, 0)
    assert [(job["$seq"], job["deliveries"]) for job in rig.claim(limit=3)] == [(1, 2), (2, 1), (3, 1)]


class TopicCopier:
    """Somebody who copies one record when asked."""

    def __init__(self, rig: QueueRig) -> None:
        self.rig = rig

    def bring(self, topic: Topic) -> Pending[None] | None:
        done: Pending[None] = Pending()
        self.rig.write_nowait(topic.name, "copy").then(lambda _: done.resolve(None))
        return done


def test_copies_that_are_due_come_before_the_claim(rig: QueueRig) -> None:
    rig.queue()
    rig.engine.topic_copiers.append(TopicCopier(rig))
    (job,) = rig.claim(limit=5)
    assert job["data"] == "copy"


# Large jobs


def test_an_answer_is_no_larger_than_a_page_may_be(rig: QueueRig) -> None:
    rig.queue()
    for _ in range(10):
        rig.write("q", "x" * 1_000_000)
    rig.claimed(limit=2)
    rig.nack("q", 1, 2)
    first = rig.claim(limit=1000)
    assert [(job["$seq"], job["deliveries"]) for job in first] == [(1, 2), (2, 2), *((n, 1) for n in range(3, 9))]
    assert rig.counters() == (2, 8, 0)
    assert [(job["$seq"], job["deliveries"]) for job in rig.claim(limit=1000)] == [(9, 1), (10, 1)]


def test_large_dead_letters_move_in_several_steps(rig: QueueRig) -> None:
    overdelivered(rig, 0)
    for _ in range(10):
        rig.write("q", "x" * 1_000_000)
    while rig.claimed(limit=1000):
        pass
    rig.nack("q", *range(1, 11))
    assert rig.claimed(limit=1) == []
    assert (rig.counters(), rig.seqs("dead")) == ((0, 0, 10), list(range(1, 11)))
