"""Turns: nobody is forgotten, and nobody takes the loop for themselves."""

from driftq.features.watch.turns import Turns
from driftq.testing import EngineRig


class Talker:
    """Wants so many turns, each as dear as the test says."""

    def __init__(self, turns: Turns, log: list[str], name: str, times: int, cost: int = 100, priority: int = 0) -> None:
        self.turns, self.log, self.name = turns, log, name
        self.times, self.cost, self.priority = times, cost, priority
        turns.ask(self, priority)

    def step(self) -> int:
        self.log.append(self.name)
        self.times -= 1
        if self.times:
            self.turns.ask(self, self.priority)
        return self.cost


def test_everybody_has_a_turn_before_anybody_has_two() -> None:
    rig = EngineRig()
    turns = Turns(rig.engine, rig.runtime, rig.clock)
    log: list[str] = []
    for name in "abc":
        Talker(turns, log, name, 2)
    rig.runtime.run_until_idle()
    assert "".join(log) == "abcabc"


def test_a_loop_turn_serves_for_a_while_and_lets_others_run() -> None:
    rig = EngineRig()
    turns = Turns(rig.engine, rig.runtime, rig.clock)
    log: list[str] = []
    Talker(turns, log, "x", 10, cost=600 << 10)
    rig.runtime.soon(lambda: log.append("other"))
    rig.runtime.run_until_idle()
    assert log[:3] == ["x", "x", "other"]
    assert log.count("x") == 10


def test_what_is_read_lately_is_served_more_often() -> None:
    rig = EngineRig()
    turns = Turns(rig.engine, rig.runtime, rig.clock)
    log: list[str] = []
    Talker(turns, log, "low", 100, cost=64 << 10, priority=-1)
    Talker(turns, log, "high", 100, cost=64 << 10, priority=900)
    rig.runtime.run_until_idle()
    assert log[:90].count("high") == 80
    assert log.count("low") == 100
