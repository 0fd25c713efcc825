"""The effective priority as a function of config and time (http-v0 §15)."""

import pytest

from driftq.engine.load.priority import effective_priority
from driftq.model.topic_config import TopicConfig


@pytest.mark.parametrize(
    ("seconds", "recency"), [(0, 500), (15, 354), (30, 250), (60, 125), (120, 31), (299, 0), (300, 0), (10_000, 0)]
)
def test_recency_halves_every_thirty_seconds_and_ends_after_five_minutes(seconds: int, recency: int) -> None:
    assert effective_priority(TopicConfig(), 1000, 1000 + seconds * 1000) == recency


def test_what_was_never_read_or_does_not_want_it_has_no_recency() -> None:
    assert effective_priority(TopicConfig(), None, 5) == 0
    assert effective_priority(TopicConfig(auto_priority=False, priority=7), 5, 5) == 7


@pytest.mark.parametrize(
    ("given", "used"), [(None, 0), (7, 7), (-7, -7), (1000, 1000), (5000, 1000), (-2_000_000_000, -1000)]
)
def test_manual_priority_is_clamped_and_adds_up(given: int | None, used: int) -> None:
    config = TopicConfig(priority=given)
    assert effective_priority(config, None, 0) == used
    assert effective_priority(config, 100, 100) == used + 500


@pytest.mark.parametrize(("waited", "age"), [(0, 0), (1, 0), (50, 5), (10_000, 1000), (60_000, 1000), (-5, 0)])
def test_waiting_adds_a_tenth_a_millisecond_up_to_a_thousand(waited: int, age: int) -> None:
    assert effective_priority(TopicConfig(), None, 0, waited) == age


def test_a_clock_that_stepped_back_makes_nothing_fresher_than_fresh() -> None:
    assert effective_priority(TopicConfig(), 2000, 1000) == 500
