"""Events that come in crowds are a few log lines, with counts."""

import logging

import pytest

from driftq.system.log_facts import FACTS
from driftq.system.log_repeats import REASONS_MAX, WINDOW_MS, Repeats
from driftq.testing import ManualClock, ManualRuntime

LOG = logging.getLogger("driftq.test")


class Rig:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self._caplog = caplog
        self.runtime = ManualRuntime(ManualClock())
        self.repeats = Repeats(self.runtime, LOG)

    def note(self, reason: str = "full", *, most: int = 1, **named: int) -> None:
        self.repeats.note(reason, logging.INFO, "refused", {"reason": reason, **named}, most=most)

    def lines(self) -> list[dict[str, object]]:
        """The facts of the lines since it was asked last."""
        found = [getattr(record, FACTS) for record in self._caplog.records if record.name == LOG.name]
        self._caplog.clear()
        return found


@pytest.fixture
def rig(caplog: pytest.LogCaptureFixture) -> Rig:
    return Rig(caplog)


def test_one_reason_has_at_most_one_line_per_minute_with_the_count(rig: Rig) -> None:
    rig.note(n=0)
    assert rig.lines() == [{"reason": "full", "count": 1, "n": 0}]
    for number in range(1, 1001):
        rig.note(n=number)
    assert rig.lines() == []
    rig.runtime.advance(WINDOW_MS - 1)
    assert rig.lines() == []
    rig.runtime.advance(1)
    assert rig.lines() == [{"reason": "full", "count": 1000, "n": 1000}]
    rig.note(n=7)
    assert rig.lines() == []
    rig.runtime.advance(WINDOW_MS)
    assert rig.lines() == [{"reason": "full", "count": 1, "n": 7}]


def test_a_minute_of_silence_makes_the_next_event_a_line_at_once(rig: Rig) -> None:
    rig.note()
    rig.runtime.advance(WINDOW_MS)
    rig.lines()
    rig.note()
    assert [line["count"] for line in rig.lines()] == [1]


def test_reasons_are_counted_apart(rig: Rig) -> None:
    for reason in ("a", "b", "a", "b", "b"):
        rig.note(reason)
    assert [line["reason"] for line in rig.lines()] == ["a", "b"]
    rig.runtime.advance(WINDOW_MS)
    assert sorted((line["reason"], line["count"]) for line in rig.lines()) == [("a", 1), ("b", 2)]


def test_several_lines_may_come_at_once_and_the_rest_is_counted(rig: Rig) -> None:
    for number in range(5):
        rig.note(most=3, n=number)
    assert [(line["n"], line["count"]) for line in rig.lines()] == [(0, 1), (1, 1), (2, 1)]
    rig.runtime.advance(WINDOW_MS)
    assert [(line["n"], line["count"]) for line in rig.lines()] == [(4, 2)]


def test_the_end_of_a_server_loses_no_count(rig: Rig) -> None:
    rig.note()
    rig.note()
    rig.lines()
    rig.repeats.flush()
    assert [line["count"] for line in rig.lines()] == [1]
    rig.runtime.advance(2 * WINDOW_MS)
    assert rig.lines() == []


def test_many_reasons_cost_bounded_memory(rig: Rig) -> None:
    for number in range(3 * REASONS_MAX):
        rig.note(str(number))
    assert len(rig.lines()) == REASONS_MAX + 1
    rig.runtime.advance(WINDOW_MS)
    assert [line["count"] for line in rig.lines()] == [2 * REASONS_MAX - 1]
