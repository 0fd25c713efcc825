"""Jobs pushed to connections: how many, when the next comes, what a disconnect gives back, how it ends."""

import pytest

from driftq.features.queue.backlog import Backlog
from driftq.features.queue.claims import Claimer
from tests.unit.failing import BugError, fail_once
from tests.unit.features.queue.rig import Connection, QueueRig


@pytest.fixture
def rig() -> QueueRig:
    rig = QueueRig()
    rig.queue(jobs=5)
    return rig


def opened(rig: QueueRig, **options: object) -> Connection:
    connection = Connection(rig, **options)  # type: ignore[arg-type]
    rig.runtime.run_until_idle()
    return connection


def test_a_connection_holds_its_maximum_and_each_ack_brings_one_more(rig: QueueRig) -> None:
    """inv: 70"""
    connection = opened(rig, limit=2)
    assert connection.seqs() == [1, 2]
    rig.ack("q", 2)
    assert connection.seqs() == [3]
    rig.ack("q", 1, 3)
    assert connection.seqs() == [4, 5]
    rig.ack("q", 4, 5)
    assert (connection.seqs(), rig.counters()) == ([], (0, 0, 0))


def test_a_job_under_ack_still_counts(rig: QueueRig) -> None:
    connection = opened(rig)
    connection.seqs()
    rig.hold_wal()
    rig.ack_nowait("q", 1)
    rig.runtime.run_until_idle()
    assert connection.seqs() == []
    rig.release_wal()
    assert connection.seqs() == [2]


def test_a_disconnect_gives_back_what_came_by_this_connection_only(rig: QueueRig) -> None:
    """inv: 70"""
    assert rig.claimed() == [1]
    first, second = opened(rig, limit=2), opened(rig, limit=1)
    assert (first.seqs(), second.seqs()) == ([2, 3], [4])
    first.push.close()
    assert rig.counters() == (3, 2, 0)
    rig.ack("q", 4)
    assert second.seqs() == [2]
    assert second.push.held == {2}


def test_nacked_jobs_come_again(rig: QueueRig) -> None:
    connection = opened(rig)
    for number in (1, 2, 3):
        (job,) = connection.jobs
        connection.jobs.clear()
        assert (job["$seq"], job["deliveries"]) == (1, number)
        rig.nack("q", 1)


def test_a_lease_that_runs_out_makes_room(rig: QueueRig) -> None:
    connection = opened(rig, lease_ms=600)
    assert connection.seqs() == [1]
    rig.runtime.advance(600)
    assert connection.seqs() == []
    rig.runtime.advance(1)
    assert [(job["$seq"], job["deliveries"]) for job in connection.jobs] == [(1, 2)]


def test_a_delay_that_is_over_reaches_an_idle_connection(rig: QueueRig) -> None:
    connection = opened(rig, limit=9)
    rig.ack("q", 2, 3, 4, 5)
    connection.seqs()
    rig.nack("q", 1, delay_ms=700)
    rig.runtime.advance(699)
    assert connection.seqs() == []
    rig.runtime.advance(1)
    assert connection.seqs() == [1]


def test_somebody_elses_lease_that_runs_out_reaches_it(rig: QueueRig) -> None:
    rig.claimed(limit=5, node="slow", lease_ms=1000)
    connection = opened(rig, limit=5)
    assert connection.seqs() == []
    rig.runtime.advance(1001)
    assert connection.seqs() == [1, 2, 3, 4, 5]


def test_an_extension_keeps_the_job_with_the_connection(rig: QueueRig) -> None:
    connection = opened(rig, lease_ms=600)
    connection.seqs()
    rig.extend("q", 1, lease_ms=60_000)
    rig.runtime.advance(1000)
    assert (connection.seqs(), connection.push.held) == ([], {1})
    connection.push.close()
    assert rig.counters() == (5, 0, 0)


def test_a_deleted_job_makes_room_and_an_append_fills_it(rig: QueueRig) -> None:
    connection = opened(rig)
    assert connection.seqs() == [1]
    rig.delete("q", before_seq=6)
    assert connection.seqs() == []
    rig.write("q", 6)
    assert connection.seqs() == [6]


def test_a_peer_that_does_not_read_gets_no_more(rig: QueueRig) -> None:
    rig.write("q", *range(6, 101))
    connection = Connection(rig, limit=1000)
    connection.room = False
    rig.runtime.run_until_idle()
    assert connection.seqs() == []
    rig.write("q", 101)
    assert (connection.seqs(), rig.counters()) == ([], (101, 0, 0))
    connection.room = True
    connection.room_for = 1
    connection.push.wake()
    rig.runtime.run_until_idle()
    assert len(connection.seqs()) == 32, "one helping fills it"
    connection.room = True
    connection.room_for = None
    connection.push.wake()
    rig.runtime.run_until_idle()
    assert len(connection.seqs()) == 69


def test_under_pressure_a_topic_of_negative_priority_is_not_pushed(rig: QueueRig) -> None:
    rig.queue("low", priority=-1, auto_priority=False)
    low, normal = opened(rig, name="low"), opened(rig, limit=9)
    normal.seqs()
    rig.engine.pressure._lag_ms = 60
    rig.write("low", 1)
    rig.write("q", 6)
    rig.runtime.advance(50)
    assert (low.seqs(), normal.seqs()) == ([], [6])
    assert rig.claimed("low") == [1]
    rig.nack("low", 1)
    rig.runtime.advance(400)
    assert low.seqs() == [1], "the loop is on time again"


def test_connections_and_polls_are_one_cohort() -> None:
    rig = QueueRig()
    rig.queue(claim_jitter_ms=300)
    first, second = opened(rig, limit=10), opened(rig, limit=10)
    rig.write("q", *range(12))
    poll = rig.claim_nowait(limit=10)
    rig.runtime.advance(300)
    hands = [first.seqs(), second.seqs(), poll.result().seqs]
    assert sorted(map(len, hands)) == [4, 4, 4]
    assert sorted(seq for hand in hands for seq in hand) == list(range(1, 13))


def test_the_end_of_the_queue_is_told_at_once(rig: QueueRig) -> None:
    connection = opened(rig, limit=2)
    rig.run(rig.engine.delete_topic("q"))
    assert connection.ended == 1
    rig.queue(jobs=1)
    assert (connection.seqs(), connection.ended) == ([1, 2], 1)


def test_a_queue_made_again_is_another_one(rig: QueueRig) -> None:
    connection = opened(rig)
    rig.engine.delete_topic("q")
    rig.put_nowait("q")
    rig.runtime.run_until_idle()
    assert connection.ended == 1


def test_a_job_that_was_claimed_for_a_peer_that_left_is_given_back(rig: QueueRig) -> None:
    rig.queue(leases_durable=True)
    rig.hold_wal()
    connection = Connection(rig, limit=2)
    rig.runtime.run_until_idle()
    connection.push.close()
    rig.release_wal()
    assert (connection.seqs(), rig.counters()) == ([], (5, 0, 0))


def test_after_a_failed_claim_it_asks_again(rig: QueueRig) -> None:
    rig.queue("poison", jobs=2, max_deliveries=1, dead_letter="dead")
    connection = opened(rig, name="poison")
    assert connection.seqs() == [1]
    rig.nack("poison", 1)
    assert connection.seqs() == [2]
    assert rig.counters("poison") == (0, 1, 1)


@pytest.mark.parametrize(("owner", "name"), [(Backlog, "refresh"), (Claimer, "claim")])
def test_a_look_that_fails_is_not_the_last(
    rig: QueueRig, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    connection = opened(rig, lease_ms=600)
    assert connection.seqs() == [1]
    fail_once(monkeypatch, owner, name)
    with pytest.raises(BugError):
        rig.runtime.advance(601)
    rig.runtime.advance(300)
    assert connection.seqs() == [1]


def test_a_delivery_that_fails_is_not_the_last(rig: QueueRig, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_once(monkeypatch, Connection, "_deliver")
    connection = Connection(rig, lease_ms=600)
    with pytest.raises(BugError):
        rig.runtime.run_until_idle()
    rig.runtime.advance(601)
    assert connection.seqs() == [1]
