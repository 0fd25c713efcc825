"""Wall, engine time and stamps: what steps of the wall clock, suspends and restarts do to each of them."""

import logging
import random

import pytest

from driftq.engine.engine_time import AHEAD_MS, EngineTime
from driftq.testing import EngineRig, ManualClock

DAY = 86_400_000
T = 1_700_000_000_000


def restarted(time: EngineTime, clock: ManualClock, noted: int = 0) -> EngineTime:
    """The time of the next process, which knows what a checkpoint has of the one before."""
    again = EngineTime(clock)
    again.restore(time.state())
    again.found_note(noted)
    again.resume(expiring=True)
    return again


def test_all_three_are_the_wall_clock_while_nothing_sets_it() -> None:
    clock = ManualClock(T)
    time = EngineTime(clock)
    for _ in range(3):
        assert time.stamp() == time.now() == time.running() == time.wall() == clock.wall_ms()
        clock.advance(7)
    assert (time.offset, time.ahead_ms, len(time.timeline.points)) == (0, 0, 1)


@pytest.mark.parametrize("step", [-DAY, -1000, -1, 1, 1000, DAY])
def test_engine_time_runs_on_at_the_same_speed_when_the_wall_clock_is_set(step: int) -> None:
    clock = ManualClock(T)
    time = EngineTime(clock)
    time.stamp()
    clock.set_wall(T + step)
    for passed in range(10):
        assert time.running() == T + passed
        assert T + passed - 1 <= time.now() <= T + passed
        assert time.shown(time.running()) == clock.wall_ms() or passed == 0
        time.stamp()
        clock.advance(1)


def test_a_stamp_follows_the_wall_clock_ahead_and_creeps_at_half_speed_until_it_has_caught_up() -> None:
    clock = ManualClock(T)
    time = EngineTime(clock)
    clock.set_wall(T + 10_000)
    assert time.stamp() == T + 10_000
    clock.set_wall(T)
    assert time.stamp() == T + 10_001
    clock.advance(4000)
    assert time.stamp() == T + 12_001
    assert time.ahead_ms == 8001
    clock.advance(16_000)
    assert time.stamp() == T + 20_001
    clock.advance(4)
    assert time.stamp() == clock.wall_ms() == T + 20_004
    assert time.ahead_ms == 0


def test_a_wrong_time_that_nothing_was_stamped_with_leaves_no_trace() -> None:
    clock = ManualClock(T)
    time = EngineTime(clock)
    time.stamp()
    clock.set_wall(T + DAY)
    time.look()
    clock.advance(1000)
    clock.set_wall(T + 1000)
    time.look()
    assert (time.stamp(), time.ahead_ms, time.running()) == (T + 1000, 0, T + 1000)


def test_the_moment_of_a_stamp_is_the_time_it_was_given_at_however_the_clock_is_set() -> None:
    """Also for every stamp that an earlier process gave."""
    for seed in range(60):
        rng = random.Random(seed)
        clock = ManualClock(T)
        time = EngineTime(clock)
        given: list[tuple[int, int]] = []
        last = now = 0
        for _ in range(80):
            step = rng.randrange(6)
            if step == 0:
                clock.set_wall(max(1, clock.wall_ms() + rng.choice([-DAY, -5000, -3, -1, 1, 3, 5000, DAY])))
            elif step == 1:
                clock.suspend(rng.randrange(100_000))
            elif step == 2 and rng.randrange(4) == 0:
                noted = time.ahead() if rng.randrange(2) else 0
                clock.reboot()
                time = restarted(time, clock, noted)
            else:
                clock.advance_ns(rng.randrange(3_000_000))
            assert time.now() >= now, f"seed {seed}: engine time went back"
            if rng.randrange(2):
                before = time.now()
                stamp = time.stamp()
                now = time.now()
                assert stamp >= last, f"seed {seed}: a stamp went back"
                assert before <= time.timeline.moment(stamp) <= now <= time.running() + AHEAD_MS
                given.append((stamp, time.timeline.moment(stamp)))
                last = stamp
            for stamp, moment in given:
                assert time.timeline.moment(stamp) == moment, f"seed {seed}: a record's age has changed"
        for _, moment in given:
            kept = time.timeline.stamp(moment)
            assert [stamp >= kept for stamp, _ in given] == [other >= moment for _, other in given], f"seed {seed}"


def test_what_is_kept_is_what_is_not_older_by_the_steady_clock() -> None:
    clock = ManualClock(T)
    time = EngineTime(clock)
    first = time.stamp()
    clock.advance(100)
    clock.set_wall(T + DAY)
    second = time.stamp()
    clock.set_wall(T + 100)
    clock.advance(100)
    third = time.stamp()
    assert [time.age(stamp) for stamp in (first, second, third)] == [200, 100, 0]
    for age, kept in ((200, [first, second, third]), (199, [second, third]), (100, [second, third]), (99, [third])):
        assert [stamp for stamp in (first, second, third) if stamp >= time.kept_from(age)] == kept


def test_a_suspend_counts() -> None:
    clock = ManualClock(T)
    time = EngineTime(clock)
    stamp = time.stamp()
    assert not time.look()
    clock.suspend(3_600_000)
    assert time.running() == T + 3_600_000
    assert time.age(stamp) == 3_600_000
    assert (time.look(), time.look()) == (True, False)
    assert time.offset == 0


def test_time_that_passes_while_the_server_is_down_counts_by_the_wall_clock() -> None:
    clock = ManualClock(T)
    time = EngineTime(clock)
    stamp = time.stamp()
    clock.reboot()
    clock.set_wall(T + 5000)
    time = restarted(time, clock)
    assert (time.running(), time.age(stamp), time.stamp()) == (T + 5000, 5000, T + 5000)


def test_time_that_passes_while_the_server_is_down_counts_also_after_a_moment_at_the_wrong_time() -> None:
    clock = ManualClock(T)
    time = EngineTime(clock)
    right = time.stamp()
    clock.set_wall(T + DAY)
    wrong = time.stamp()
    clock.set_wall(T)
    time.look()
    clock.set_wall(T + 5000)
    time = restarted(time, clock)
    assert [time.age(stamp) for stamp in (right, wrong)] == [5000, 5000]


def test_a_clock_that_was_set_back_while_the_server_was_down_does_not_take_engine_time_back() -> None:
    clock = ManualClock(T)
    time = EngineTime(clock)
    stamp = time.stamp()
    clock.advance(1000)
    state = time
    clock.set_wall(T - DAY)
    time = restarted(state, clock)
    assert time.running() == T + 1000
    assert time.age(stamp) == 1000
    assert time.stamp() == stamp + 1
    clock.advance(10)
    assert (time.running(), time.stamp()) == (T + 1010, stamp + 6)


def test_after_a_crash_expiry_is_judged_at_what_was_noted_while_engine_time_runs_on() -> None:
    clock = ManualClock(T)
    time = EngineTime(clock)
    time.stamp()
    noted = time.ahead()
    clock.advance(500)
    time = restarted(time, clock, noted)
    assert (time.running(), time.now()) == (T + 500, T + AHEAD_MS)
    assert time.timeline.moment(time.stamp()) == T + AHEAD_MS
    clock.advance(AHEAD_MS)
    assert time.running() == time.now() == T + 500 + AHEAD_MS
    assert time.stamp() == clock.wall_ms()


def test_a_steady_clock_that_breaks_its_promise_does_not_take_engine_time_back() -> None:
    clock = ManualClock(T)
    time = EngineTime(clock)
    clock.advance(1000)
    assert time.running() == T + 1000
    clock.reboot()
    assert time.running() == T + 1000
    clock.advance(5)
    assert time.running() == T + 1005


def test_a_clock_that_was_set_is_logged_and_so_are_the_begin_and_the_end_of_a_difference(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line each, however often it is looked at. row: F-CLOCK-1, F-CLOCK-2"""
    clock = ManualClock(T)
    time = EngineTime(clock)
    clock.set_wall(T + 60_000)
    time.stamp()
    clock.set_wall(T)
    with caplog.at_level(logging.WARNING):
        for _ in range(200):
            time.look()
            time.stamp()
            clock.advance(1000)
    texts = [record.getMessage() for record in caplog.records]
    assert texts == [
        "the wall clock was set by +60000 ms; durations are not affected",
        "the wall clock was set by -60000 ms; durations are not affected",
        "$ts is 60000 ms ahead of the wall clock and advances at half speed until the wall clock has caught up",
        "the wall clock has caught up: $ts is at most 1000 ms ahead of it",
    ]


def frames_of(rig: EngineRig) -> int:
    return rig.engine.shards.all[0].counters.frames


def test_time_is_noted_only_while_some_topic_has_a_ttl_and_at_most_once_a_second() -> None:
    rig = EngineRig(checkpoint_interval_ms=1 << 40)
    rig.put("t")
    before = frames_of(rig)
    rig.runtime.advance(10_000)
    assert frames_of(rig) == before
    rig.put("t", ttl_ms=1000)
    before = frames_of(rig)
    rig.runtime.advance(10_000)
    assert 9 <= frames_of(rig) - before <= 11


@pytest.mark.parametrize("ttl", [0, 1000])
def test_a_clock_that_was_set_back_takes_engine_time_back_over_no_restart(ttl: int) -> None:
    rig = EngineRig()
    rig.put("t", ttl_ms=ttl)
    rig.write("t", 1)
    seen = rig.engine.time.now()
    rig.clock.set_wall(seen - 60_000)
    rig.crash()
    assert rig.engine.time.now() >= seen
