"""The engine's time never goes back: not with the clock, and where a TTL was judged by it not over a restart either."""

import pytest

from driftq.engine.time import EngineTime
from driftq.testing import EngineRig, ManualClock


def test_it_follows_the_clock_and_stands_still_while_that_is_behind() -> None:
    clock = ManualClock(1000)
    time = EngineTime(clock)
    assert time.now() == 1000
    clock.set_wall(400)
    assert time.now() == 1000
    clock.advance(601)
    assert time.now() == 1001


def test_a_moment_that_was_seen_is_a_floor() -> None:
    time = EngineTime(ManualClock(1000))
    time.not_before(5000)
    assert time.now() == 5000
    time.not_before(10)
    assert time.now() == 5000


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
def test_a_clock_that_was_set_back_is_believed_behind_a_restart_where_nobody_judged_by_it(ttl: int) -> None:
    rig = EngineRig()
    rig.put("t", ttl_ms=ttl)
    rig.runtime.advance(5000)
    seen = rig.engine.time.now()
    rig.clock.set_wall(seen - 60_000)
    rig.crash()
    assert (rig.engine.time.now() >= seen) == bool(ttl)
