"""The lease table alone: states, deadlines, fencing, what an event does and what it does not."""

import pytest

from driftq.features.queue.lease_events import Grant, LeaseEvent, Release, decode_state, encode
from driftq.features.queue.lease_table import LeaseTable, lease_id


def granted(
    *seqs: int, number: int = 1, node: str = "w", deadline: int = 100, table: LeaseTable | None = None
) -> LeaseTable:
    """A table in which these jobs are held."""
    table = table or LeaseTable()
    table.apply(LeaseEvent(0, [], [Grant(number, node, deadline, list(seqs))]))
    return table


def extended(table: LeaseTable, *seqs: int, number: int = 1, deadline: int) -> None:
    """Another deadline for these jobs."""
    table.apply(LeaseEvent(0, [], [Grant(number, "w", deadline, list(seqs), extends=True)]))


def test_a_lease_lives_up_to_and_including_its_deadline() -> None:
    """inv: 65"""
    table = granted(1, 2)
    assert not table.sweep(100)
    assert sorted(table.held) == [1, 2]
    assert table.sweep(101)
    assert not table.held
    assert table.reclaim(9) == [1, 2]


def test_time_that_goes_back_neither_ends_nor_revives_a_lease() -> None:
    table = granted(1, deadline=100)
    table.sweep(101)
    assert not table.sweep(50)
    assert (table.held, table.clock) == ({}, 101)
    granted(2, number=2, deadline=300, table=table)
    assert not table.sweep(60)
    assert list(table.held) == [2]


def test_jobs_that_were_given_back_come_lowest_first() -> None:
    table = granted(3, 1, 2, 7)
    taken, _ = table.take("w", [7, 2, 3], ())
    table.apply(LeaseEvent(0, [Release(1, list(taken))]))
    assert table.reclaim(2) == [2, 3]
    assert table.reclaim(2) == [7]


def test_a_delayed_job_comes_back_at_its_moment() -> None:
    table = granted(1, deadline=1000)
    table.take("w", [1], ())
    table.apply(LeaseEvent(10, [Release(1, [1], 60)]))
    assert (table.in_flight, table.delayed) == (0, {1: 60})
    assert not table.sweep(59)
    assert table.next_due() == 60
    assert table.sweep(60)
    assert table.reclaim(1) == [1]


def test_only_the_holder_with_the_current_token_settles_a_job() -> None:
    """inv: 68"""
    table = granted(1, 2, 3, number=7)
    taken, skipped = table.take("other", [1], ())
    assert (taken, skipped) == ({}, [1])
    tokens = [lease_id(6, 1), lease_id(7, 2), ""]
    taken, skipped = table.take("w", [1, 2, 3], tokens)
    assert (sorted(taken), skipped) == ([2, 3], [1])
    assert table.take("w", [2, 9, 1, 1], ())[1] == [2, 9, 1]


def test_what_is_being_settled_is_in_flight_and_nobody_elses() -> None:
    table = granted(1, 2)
    taken, _ = table.take("w", [1], ())
    assert table.in_flight == 2
    assert table.reclaim(9) == []
    table.sweep(101)
    assert list(table.settling) == [1], "an ack in time is in time, however long its commit takes"
    table.done(taken)
    assert (table.in_flight, table.reclaim(9)) == (0, [2])


def test_what_could_not_be_settled_is_held_and_ends_with_its_deadline() -> None:
    table = granted(1)
    taken, _ = table.take("w", [1], ())
    table.hold_again(taken)
    assert list(table.held) == [1]
    table.sweep(101)
    assert table.reclaim(9) == [1]


def test_a_job_whose_lease_ran_out_while_it_was_settled_in_vain_is_not_stranded() -> None:
    table = granted(1)
    taken, _ = table.take("w", [1], ())
    table.sweep(500)
    table.hold_again(taken)
    table.sweep(501)
    assert table.reclaim(9) == [1]


def test_a_failed_ack_makes_the_job_claimable() -> None:
    table = granted(1)
    taken, _ = table.take("w", [1], ())
    table.release_settling(taken)
    assert (table.in_flight, table.reclaim(9)) == (0, [1])


def test_an_extension_keeps_the_number_and_outlives_the_first_deadline() -> None:
    table = granted(1, 2)
    table.take_to_extend("w", [1], ())
    extended(table, 1, deadline=500)
    table.sweep(200)
    assert {seq: lease.number for seq, lease in table.held.items()} == {1: 1}
    table.sweep(501)
    assert table.reclaim(9) == [1, 2]


def test_an_extension_may_shorten() -> None:
    table = granted(1, deadline=500)
    table.take_to_extend("w", [1], ())
    extended(table, 1, deadline=50)
    table.sweep(51)
    assert not table.held


def test_a_job_that_is_being_extended_does_not_run_out_and_can_be_settled() -> None:
    table = granted(1, 2, 3)
    table.take_to_extend("w", [1, 2, 3], ())
    table.sweep(200)
    assert (table.in_flight, table.reclaim(9)) == (3, [])
    assert sorted(table.take("w", [1, 2], ())[0]) == [1, 2]
    table.done([1])
    extended(table, 1, 2, 3, deadline=500)
    assert (list(table.held), list(table.settling)) == ([3], [2])


def test_an_extension_gives_nobody_what_he_no_longer_holds() -> None:
    table = granted(1, 2)
    table.drop([1])
    granted(2, number=2, deadline=900, table=table)
    extended(table, 1, 2, deadline=500)
    assert {seq: lease.number for seq, lease in table.held.items()} == {2: 2}


def test_an_extension_that_failed_leaves_the_lease_as_it_was() -> None:
    table = granted(1)
    taken, _ = table.take_to_extend("w", [1], ())
    table.hold_again(taken)
    assert (table.held[1].deadline, table.extending) == (100, {})


def test_a_release_of_an_older_lease_is_passed_over() -> None:
    table = granted(1, number=1)
    granted(1, number=2, deadline=900, table=table)
    table.apply(LeaseEvent(0, [Release(1, [1])]))
    assert table.held[1].number == 2
    table.sweep(200)
    assert list(table.held) == [1], "the older deadline is passed over, too"


def test_deliveries_are_one_unless_said_otherwise() -> None:
    table = granted(1, 2)
    assert table.deliveries(1) == 1
    table.apply(LeaseEvent(0, [], [Grant(2, "w", 100, [1], [(1, 2)])]))
    assert (table.deliveries(1), table.deliveries(2)) == (2, 1)
    table.give_back([5], fresh=True)
    assert table.deliveries(5) == 0


def test_jobs_that_are_gone_are_nobodys() -> None:
    table = granted(1, 2, 3, 4, 5, 6)
    table.take("w", [2], ())
    table.take("w", [3], ())
    table.apply(LeaseEvent(0, [Release(1, [3], 900)]))
    table.drop_below(4)
    assert (sorted(table.held), list(table.settling), table.delayed) == ([4, 5, 6], [], {})
    table.drop([5])
    table.drop_below(5)
    assert sorted(table.held) == [6]
    table.sweep(101)
    assert table.reclaim(9) == [6]


def test_what_a_connection_holds_is_counted_for_it() -> None:
    held: set[int] = set()
    table = LeaseTable()
    table.streams[1] = held
    granted(1, 2, 3, 4, table=table)
    assert held == {1, 2, 3, 4}
    table.take("w", [1, 3], ())
    table.take_to_extend("w", [2], ())
    assert held == {1, 2, 3, 4}, "until it is committed"
    table.done([1])
    extended(table, 2, deadline=500)
    table.apply(LeaseEvent(0, [Release(1, [3])]))
    assert held == {2, 4}
    table.sweep(101)
    assert held == {2}
    table.drop([2])
    assert held == set()


def test_the_heap_of_deadlines_does_not_grow_with_leases_that_are_done() -> None:
    table = LeaseTable()
    for number in range(10_000):
        granted(number, number=number, deadline=10**9, table=table)
        table.done(table.take("w", [number], ())[0])
    assert len(table._deadlines) < 500


def test_a_capture_brings_back_the_same_table() -> None:
    table = granted(1, 2, 3, 4, 5, number=9)
    table.logged = True
    table.take("w", [1], ())
    table.take("w", [2], ())
    table.apply(LeaseEvent(10, [Release(9, [2], 700)]))
    granted(5, 8, number=10, node="v", deadline=600, table=table)
    table.dead_lettered = 3
    back = LeaseTable.of(decode_state(encode(table.capture())))
    back.rebuild([1, 2, 3, 4, 5, 6, 8])
    assert {seq: (x.number, x.node, x.deadline) for seq, x in back.held.items()} == {
        1: (9, "w", 100),
        3: (9, "w", 100),
        4: (9, "w", 100),
        5: (10, "v", 600),
        8: (10, "v", 600),
    }
    assert (back.delayed, back.dead_lettered, back.clock, back.cursor) == ({2: 700}, 3, 10, 8)
    assert back.reclaim(9) == [6]
    back.sweep(701)
    assert back.reclaim(9) == [1, 2, 3, 4, 5, 8]


def test_a_restart_drops_leases_on_jobs_that_are_gone() -> None:
    table = granted(1, 2, 3)
    table.logged = True
    table.rebuild([2, 3])
    assert sorted(table.held) == [2, 3]


@pytest.mark.parametrize("logged", [False, True])
def test_the_log_is_owed_what_it_does_not_know(logged: bool) -> None:
    table = granted(1, 2)
    table.logged = logged
    taken, _ = table.take("w", [1], ())
    table.release_settling(taken)
    table.sweep(101)
    assert table.owed == ([Release(1, [1]), Release(1, [2])] if logged else [])


def test_a_lease_id_names_one_delivery() -> None:
    ids = {lease_id(number, seq) for number in (1, 0x10, 0x100, 1 << 63) for seq in (1, 16, 256, (1 << 64) - 1)}
    assert len(ids) == 16
