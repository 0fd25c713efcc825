"""Waiters: called once a turn, by name, until they are taken away."""

from driftq.engine.read.waiting_readers import Wakeups
from driftq.testing import EngineRig, ManualClock, ManualRuntime


def test_a_waiter_is_called_once_for_all_that_happened_in_a_turn() -> None:
    runtime = ManualRuntime(ManualClock())
    wakeups = Wakeups(runtime)
    called: list[str] = []
    wakeups.add("a", lambda: called.append("first"))
    wakeups.add("a", lambda: called.append("second"))
    wakeups.add("b", lambda: called.append("other"))
    wakeups.wake("a")
    wakeups.wake("a")
    assert called == []
    runtime.run_until_idle()
    assert called == ["first", "second"]


def test_a_waiter_that_is_taken_away_is_not_called() -> None:
    runtime = ManualRuntime(ManualClock())
    wakeups = Wakeups(runtime)
    called: list[str] = []

    def waiter() -> None:
        called.append("called")
        wakeups.discard("a", waiter)

    wakeups.add("a", waiter)
    for _ in range(2):
        wakeups.wake("a")
        runtime.run_until_idle()
    wakeups.discard("a", waiter)
    assert called == ["called"]


def test_a_write_a_delete_and_the_end_of_a_topic_wake_its_waiters() -> None:
    rig = EngineRig()
    rig.put("a")
    called: list[int] = []
    rig.engine.wakeups.add("a", lambda: called.append(1))
    rig.write("a", 1, 2)
    assert len(called) == 1
    rig.run(rig.engine.delete_records("a", before_seq=2))
    assert len(called) == 2
    rig.run(rig.engine.delete_topic("a"))
    assert len(called) == 3
