"""The model that the engine is compared with, against the examples of the book itself."""

import pytest

from driftq.model.tombstone import Hole, Reason
from driftq.model.topic_config import Discard, Durability, TopicConfig
from driftq.testing import (
    OracleDelete,
    OracleFound,
    OraclePut,
    OracleRow,
    OracleState,
    OracleTopic,
    OracleWrite,
)


def rows(count: int, *, tag: str | None = None, node: str | None = None) -> list[OracleRow]:
    return [OracleRow(b"%d" % row, tag, node) for row in range(count)]


def state_of(**config: object) -> OracleState:
    return OracleState(TopicConfig(**config).resolved("t"))  # type: ignore[arg-type]


def reason(state: OracleState, from_seq: int) -> Reason | None:
    tombstone = state.page(from_seq, limit=10, budget=1000).tombstone
    return None if tombstone is None else tombstone.reason


def test_the_tombstone_of_the_contract() -> None:
    """http-v0 §4.5: 1400 records, a cap of 500, a reader that stopped at 120."""
    state = state_of(cap_records=500)
    state.write([OracleRow(b"1")] * 1400, 0, None)
    tombstone = state.page(120, limit=1, budget=1000).tombstone
    assert tombstone is not None
    assert (tombstone.seq, tombstone.gap_from, tombstone.gap_to) == (901, 121, 900)
    assert (tombstone.missed_estimate, tombstone.reason) == (780, Reason.CAP)


def test_caps_and_ttl_by_the_invariants() -> None:
    state = state_of(cap_records=3)
    for _ in range(6):
        state.write(rows(1), 0, None)
    assert (state.count, state.earliest, state.evict_floor, reason(state, 0)) == (3, 4, 4, Reason.CAP)
    state = state_of(ttl_ms=100)
    state.write(rows(1), 1000, None)
    state.expire(1100)
    assert state.count == 1
    state.expire(1101)
    assert (state.count, reason(state, 0)) == (0, Reason.TTL)


def test_deletes_are_silent_and_conjunctive() -> None:
    state = state_of()
    state.write(rows(3, tag="a:1") + rows(3, tag="a") + rows(3), 0, None)
    assert state.delete(7, None, None, "a:") == 3
    assert state.delete(10, 6, "a", None) == 2
    assert (list(state.records), reason(state, 0)) == ([6, 7, 8, 9], None)


def test_the_window_the_filter_and_the_budget() -> None:
    state = state_of()
    state.write(rows(2, node="n") + rows(3), 0, None)
    page = state.page(0, limit=3, nodes=("n",), budget=1000)
    assert ([record.seq for record in page.records], page.next_from_seq) == ([3], 3)
    page = state.page(0, limit=5, budget=2)
    assert ([record.seq for record in page.records], page.next_from_seq) == ([1, 2], 2)


def test_a_hole_stops_a_page_and_has_its_own_tombstone() -> None:
    state = state_of()
    state.write(rows(2), 0, None)
    state.skip_to(5)
    state.skip_to(8)
    state.write(rows(1), 0, None)
    assert state.holes == [Hole(3, 8, Reason.CRASH, at_most=True)]
    assert state.page(0, limit=10, budget=100).next_from_seq == 2
    page = state.page(4, limit=10, budget=100)
    assert page.tombstone is not None
    assert (page.tombstone.gap_from, page.tombstone.gap_to, page.next_from_seq) == (5, 8, 9)


def test_refusals_of_a_rejecting_topic() -> None:
    state = state_of(cap_records=3, cap_bytes=10, discard=Discard.REJECT)
    assert state.refuses(4, 4, (0, 0)) == "record_too_large"
    assert state.refuses(1, 11, (0, 0)) == "record_too_large"
    assert state.refuses(2, 2, (2, 2)) == "topic_full"
    assert state.refuses(3, 10, (0, 0)) is None
    assert state_of(cap_records=3).refuses(4, 4, (0, 0)) is None


def found(state: OracleState, *, head: int | None = None, holes: list[Hole] | None = None) -> OracleFound:
    return OracleFound(
        state.config,
        state.head if head is None else head,
        state.last_ts,
        state.cap_lost,
        state.ttl_lost,
        state.holes if holes is None else holes,
        state.text,
    )


def history(durability: Durability, *, acked: int) -> tuple[OracleTopic, list[OracleState]]:
    """Three writes, so many of them acked, and the states a crash could leave."""
    config = TopicConfig(durability=durability).resolved("t")
    topic = OracleTopic(OracleState(config))
    states = [topic.state.copied()]
    for number in range(3):
        op = OracleWrite(rows(2), 0)
        topic.submitted(op)
        state = states[-1].copied()
        op.apply(state)
        states.append(state)
        if number < acked:
            topic.committed(op, lasts=durability is Durability.FSYNC)
    return topic, states


def test_an_fsync_topic_may_lose_only_what_was_not_acked() -> None:
    for left in range(4):
        topic, states = history(Durability.FSYNC, acked=2)
        if left < 2:
            with pytest.raises(AssertionError, match="no crash may leave"):
                topic.crashed(found(states[left]), 0)
        else:
            topic.crashed(found(states[left]), 0)
            assert topic.state.head == 2 * left


def test_a_memory_topic_may_lose_any_tail_but_not_the_middle() -> None:
    for left in range(4):
        topic, states = history(Durability.MEMORY, acked=3)
        topic.crashed(found(states[left]), 0)
    topic, states = history(Durability.MEMORY, acked=3)
    states[3].delete(5, None, None, None)
    with pytest.raises(AssertionError, match="no crash may leave"):
        topic.crashed(found(states[3]), 0)


def test_what_was_said_to_be_synced_is_not_lost() -> None:
    topic, states = history(Durability.MEMORY, acked=3)
    topic.synced(4)
    with pytest.raises(AssertionError, match="no crash may leave"):
        topic.crashed(found(states[1]), 0)


def test_a_disk_topic_goes_on_behind_its_reservation_and_never_below_an_ack() -> None:
    topic, states = history(Durability.DISK, acked=3)
    topic.crashed(found(states[1], head=256, holes=[Hole(3, 256, Reason.CRASH, at_most=True)]), 0)
    assert (topic.state.head, topic.state.holes) == (256, [Hole(3, 256, Reason.CRASH, at_most=True)])
    topic, states = history(Durability.DISK, acked=3)
    with pytest.raises(AssertionError, match="acked up to 6"):
        topic.crashed(found(states[1], head=4, holes=[Hole(3, 4, Reason.CRASH, at_most=True)]), 0)
    topic, states = history(Durability.DISK, acked=3)
    with pytest.raises(AssertionError, match="no crash may leave"):
        topic.crashed(found(states[1], head=256), 0)


def test_an_ephemeral_topic_loses_its_records_and_keeps_a_head() -> None:
    topic, states = history(Durability.EPHEMERAL, acked=3)
    topic.head_kept = 2
    topic.crashed(found(states[0], head=4), 0)
    assert (topic.state.head, topic.state.count) == (4, 0)
    topic, states = history(Durability.EPHEMERAL, acked=3)
    topic.head_kept = 2
    with pytest.raises(AssertionError):
        topic.crashed(found(states[0], head=1), 0)


def test_a_graceful_stop_loses_nothing_that_was_written_down() -> None:
    topic, states = history(Durability.DISK, acked=3)
    with pytest.raises(AssertionError, match="a graceful restart changed"):
        topic.stopped(found(states[2]), 0)
    topic.stopped(found(states[3]), 0)


def test_a_failed_call_leaves_no_trace_in_the_history() -> None:
    topic, _ = history(Durability.FSYNC, acked=3)
    op = OracleDelete(7, 0, before=3)
    topic.submitted(op)
    topic.failed(op)
    state = topic.state.copied()
    op.apply(state)
    with pytest.raises(AssertionError, match="no crash may leave"):
        topic.crashed(found(state), 0)


def test_a_config_in_the_history_is_in_force_behind_it() -> None:
    topic, states = history(Durability.FSYNC, acked=3)
    op = OraclePut(TopicConfig(durability=Durability.MEMORY, cap_records=1).resolved("t"), 0)
    topic.submitted(op)
    topic.committed(op, lasts=True)
    with pytest.raises(AssertionError, match="no crash may leave"):
        topic.crashed(found(states[3]), 0)
    topic.crashed(found(topic.state.copied()), 0)
    assert topic.state.earliest == 6
