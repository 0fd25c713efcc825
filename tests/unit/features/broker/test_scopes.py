"""The two scopes of the idempotency registry, without clock and log."""

import pytest

from driftq.features.broker.idempotency.consumed_keys import (
    ConsumeScope,
    KeyLeaseLostError,
    KeyNotFoundError,
    LeaseHeldError,
    Status,
)
from driftq.features.broker.idempotency.produced_keys import KeyDecision, ProduceScope
from driftq.features.broker.protocols import KeyOwner

TTL = 600
KEY = ("tenant", "topic", "k")
WORK = KeyOwner("tenant", "topic", "g", "k")


def _consume(ttl_ms: int = TTL, produced: ProduceScope | None = None) -> ConsumeScope:
    return ConsumeScope(ttl_ms, TTL, ProduceScope(TTL) if produced is None else produced)


# Produce


def test_a_key_is_new_once_in_its_window_and_again_behind_it() -> None:
    """inv1: 63, 67"""
    scope = ProduceScope(TTL)
    assert scope.begin(KEY, 0) is KeyDecision.NEW
    assert scope.begin(KEY, 0) is KeyDecision.BUSY
    scope.stored(KEY, 10, offset=0)
    assert [scope.begin(KEY, now) for now in (10, 609)] == [KeyDecision.DUPLICATE, KeyDecision.DUPLICATE]
    assert scope.begin(("other", "topic", "k"), 10) is KeyDecision.NEW
    assert scope.begin(("tenant", "other", "k"), 10) is KeyDecision.NEW
    assert scope.begin(KEY, 610) is KeyDecision.NEW


def test_a_produce_that_failed_leaves_its_key_free() -> None:
    """inv1: 64"""
    scope = ProduceScope(TTL)
    scope.begin(KEY, 0)
    scope.fail(KEY)
    assert scope.begin(KEY, 0) is KeyDecision.NEW
    assert len(scope) == 0


def test_a_checkpoint_counts_windows_from_the_commit_of_the_message() -> None:
    """inv1: 67"""
    scope, again = ProduceScope(TTL), ProduceScope(TTL)
    scope.stored(KEY, 10, offset=0)
    scope.begin(("", "topic", "under way"), 0)
    again.restore(scope.capture())
    again.stored(KEY, 10, offset=0)
    assert again.begin(KEY, 609) is KeyDecision.DUPLICATE
    assert again.begin(KEY, 610) is KeyDecision.NEW
    assert again.begin(("", "topic", "under way"), 0) is KeyDecision.NEW


def test_what_is_out_of_its_window_costs_no_memory() -> None:
    scope = ProduceScope(TTL)
    for number in range(5000):
        scope.stored(("", "t", str(number)), number, number)
    for _ in range(5):
        scope.sweep(2500 + TTL)
    assert len(scope) == 2499
    scope.sweep(10_000)
    scope.hold(("", "t", "4999"))
    for _ in range(5):
        scope.sweep(10_000)
    assert len(scope) == 1, "a group has an outcome for it"
    scope.let_go(("", "t", "4999"), 10_000)
    assert len(scope) == 0


# Consume


def test_one_owner_at_a_time_works_on_a_key() -> None:
    """inv1: 69"""
    scope = _consume()
    scope.begin(WORK, "a", 100, 0)
    assert scope.holder(WORK, 99) == "a"
    for call in (scope.begin, lambda *asked: scope.owned(asked[0], asked[1], asked[3])):
        with pytest.raises(LeaseHeldError):
            call(WORK, "b", 200, 99)
    assert scope.begin(WORK, "a", 150, 99).lease_until == 150
    assert scope.holder(WORK, 150) is None
    with pytest.raises(KeyLeaseLostError):
        scope.owned(WORK, "a", 150)
    assert scope.begin(WORK, "b", 300, 150).owner == "b"


def test_a_key_that_nobody_began_is_not_there() -> None:
    scope = _consume()
    with pytest.raises(KeyNotFoundError):
        scope.owned(WORK, "a", 0)
    assert scope.find(WORK, 0) is None


def test_an_outcome_under_way_keeps_the_key_beyond_its_lease() -> None:
    scope = _consume()
    scope.begin(WORK, "a", 100, 0)
    scope.settle(WORK)
    with pytest.raises(LeaseHeldError):
        scope.begin(WORK, "b", 900, 500)
    scope.settled(WORK)
    assert scope.begin(WORK, "b", 900, 500).owner == "b"


def test_the_first_commit_stands_with_its_result() -> None:
    """inv1: 68"""
    scope = _consume()
    scope.deliver(WORK, "a", 100, 0, partition=0, offset=3)
    scope.commit(WORK, 50, b"result")
    scope.commit(WORK, 60, b"other")
    scope.fail(WORK, 70, "late")
    entry = scope.begin(WORK, "b", 900, 80)
    assert (entry.status, entry.result, entry.updated_at) == (Status.COMMITTED, b"result", 50)


def test_a_failure_keeps_its_error_until_the_next_begin() -> None:
    scope = _consume()
    scope.begin(WORK, "a", 100, 0)
    scope.fail(WORK, 10, "boom")
    entry = scope.find(WORK, 20)
    assert entry is not None
    assert (entry.status, entry.last_error) == (Status.FAILED, "boom")
    with pytest.raises(KeyLeaseLostError):
        scope.owned(WORK, "a", 20)
    assert scope.begin(WORK, "b", 100, 20).last_error == ""


def test_a_message_stored_within_the_window_is_skipped_and_a_later_one_is_not() -> None:
    """inv1: 67"""
    scope = _consume()
    scope.commit(WORK, 100)
    assert [scope.is_committed(WORK, stored) for stored in (0, 699, 700)] == [True, True, False]
    assert not scope.is_committed(WORK._replace(group="h"), 0)


def test_a_commit_stays_while_a_message_with_its_key_is_not_done() -> None:
    """inv1: 68"""
    done: set[int] = set()
    produced = ProduceScope(TTL)
    scope = _consume(produced=produced)
    scope.is_done = lambda _topic, _group, offset: offset in done
    produced.stored(KEY, 0, offset=7)
    scope.commit(WORK, 0)
    produced.stored(KEY, 650, offset=9)
    for now in (700, 200_000, 400_000):
        scope.sweep(now)
        produced.sweep(now)
        assert scope.is_committed(WORK, 0)
    done.update((7, 9))
    for now in (600_000, 800_000):
        scope.sweep(now)
    produced.sweep(800_000)
    assert (len(scope), len(produced)) == (0, 0)


def test_without_a_window_a_commit_is_for_ever_and_nothing_else_is() -> None:
    scope = _consume(0)
    scope.commit(WORK, 0)
    scope.fail(WORK._replace(key="f"), 0, "no")
    scope.begin(WORK._replace(key="p"), "a", 10, 0)
    for now in (100_000, 200_000):
        scope.sweep(now)
    assert len(scope) == 1
    assert scope.is_committed(WORK, 10**12)


def test_a_live_lease_is_never_forgotten() -> None:
    scope = _consume()
    scope.begin(WORK, "a", 5000, 0)
    scope.sweep(4000)
    assert scope.holder(WORK, 4000) == "a"
    for now in (5000, 10_000):
        scope.sweep(now)
    assert len(scope) == 0


def test_leases_of_a_group_that_was_moved_are_void() -> None:
    scope = _consume()
    scope.begin(WORK, "a", 5000, 0)
    scope.begin(WORK._replace(group="h"), "a", 5000, 0)
    scope.void("topic", "g")
    assert (scope.holder(WORK, 1), scope.holder(WORK._replace(group="h"), 1)) == (None, "a")


def test_a_checkpoint_has_outcomes_and_no_leases() -> None:
    """inv1: 68, 69"""
    produced = ProduceScope(TTL)
    scope, again = _consume(produced=produced), _consume()
    produced.stored(KEY, 0, offset=7)
    scope.commit(WORK, 5, b"result")
    scope.fail(WORK._replace(key="f"), 6, "boom")
    scope.begin(WORK._replace(key="p"), "a", 10_000, 7)
    for ts, outcome in scope.capture():
        again.apply(outcome, ts)
    assert len(again) == 2
    assert again.is_committed(WORK, 0)
    assert again.capture() == scope.capture(), "the messages it is about are known again"
    assert again.begin(WORK._replace(key="p"), "b", 20_000, 8).owner == "b"
