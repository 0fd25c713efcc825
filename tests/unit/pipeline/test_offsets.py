"""Offsets: what a batch reads between two of them, and how a budget is shared."""

import json
from typing import Any

import pytest

from driftq.pipeline import PipelineError
from driftq.pipeline.offsets import OffsetRange, TopicOffset, decode, encode, ranges, share, within


def test_an_offset_is_json_with_topic_epoch_and_seq_and_comes_back_the_same() -> None:
    shared: dict[str, Any] = {"server_id": "s", "cursor": "group", "server": "http://b:4000"}
    places = {
        "b@x": TopicOffset(7, 1200, began=1000, **shared),
        "a": TopicOffset(1, 5, began=None, lost=3, **shared),
        "c": TopicOffset(2, 9, began=None, **shared),
        "d": TopicOffset(2, 9, began=None, **shared | {"server_id": ""}),
    }
    said = encode(places)
    assert said == {
        "": {"server": "http://b:4000", "server_id": "s", "cursor": "group"},
        "a@1": {"seq": 5, "lost": 3},
        "b@x@7": {"seq": 1200, "began": 1000},
        "c@2": 9,
        "d@2": {"seq": 9, "server_id": ""},
    }
    assert list(said)[1:] == ["a@1", "b@x@7", "c@2", "d@2"]
    assert decode(json.loads(json.dumps(said))) == places
    assert decode(encode({})) == {}


def test_an_offset_of_many_topics_is_short() -> None:
    """At most 20 bytes per topic next to its name, in the text that Spark writes."""
    names = [f"topic-{number}" for number in range(1000)]
    places = {name: TopicOffset(1000 + at, 10**9 - 1, None, server_id="s" * 32) for at, name in enumerate(names)}
    size = len(json.dumps(encode(places)))
    assert size - sum(map(len, names)) <= 20 * len(names) + 100


def test_an_offset_of_an_earlier_version_is_read() -> None:
    earlier = {"a": {"epoch": 1, "seq": 5, "began": 0, "lost": 3, "server": "http://b"}, "b": {"epoch": 7, "seq": 12}}
    assert decode(earlier) == {"a": TopicOffset(1, 5, 0, 3, "http://b"), "b": TopicOffset(7, 12, 12)}
    assert ranges(decode(earlier), {"a": TopicOffset(1, 9, None)}) == [OffsetRange("a", 1, 5, 9)]


def test_a_checkpoint_of_another_source_is_refused_by_name() -> None:
    with pytest.raises(PipelineError, match="its own checkpointLocation"):
        decode({"orders": 17})


def test_a_batch_reads_what_lies_between() -> None:
    start, end = {"t": TopicOffset(1, 10, 0)}, {"t": TopicOffset(1, 25, 0)}
    assert ranges(start, end) == [OffsetRange("t", 1, 10, 25)]
    assert ranges(end, end) == []


def test_a_query_at_latest_that_died_in_its_first_batch_reads_that_batch_again() -> None:
    logged = {"t": TopicOffset(1, 130, began=100)}
    asked_again = {"t": TopicOffset(1, 150, began=150)}
    assert ranges(asked_again, logged) == [OffsetRange("t", 1, 100, 130)]


def test_a_topic_that_came_later_is_read_from_where_it_began() -> None:
    assert ranges({}, {"new": TopicOffset(3, 9, began=2)}) == [OffsetRange("new", 3, 2, 9)]


def test_a_topic_that_was_made_again_is_read_from_its_start_and_the_break_is_known() -> None:
    left = TopicOffset(1, 50, 0)
    assert ranges({"t": left}, {"t": TopicOffset(2, 4, 0)}) == [OffsetRange("t", 2, 0, 4, missed=left)]
    assert ranges({"t": left}, {"t": TopicOffset(2, 0, 0)}) == [OffsetRange("t", 2, 0, 0, missed=left)]


def test_a_head_that_went_back_is_another_life_too() -> None:
    """A topic that lost its records in a crash has the same epoch, and a lower head."""
    left = TopicOffset(1, 50, 0)
    assert ranges({"t": left}, {"t": TopicOffset(1, 4, 0)}) == [OffsetRange("t", 1, 0, 4, missed=left)]
    nothing_read = TopicOffset(1, 50, began=50)
    assert nothing_read.lives_on_in(TopicOffset(1, 4, began=0))


@pytest.mark.parametrize(
    ("most", "most_bytes", "sizes", "found"),
    [(500, None, [9000], 500), (500, 90_000, [10, 900], 100), (50, 90_000, [900], 50), (500, 100, [900], 1)],
)
def test_a_batch_is_bounded_by_the_bytes_of_its_records(
    most: int, most_bytes: int | None, sizes: list[int], found: int
) -> None:
    assert within(most, most_bytes, sizes) == found
    assert within(most, most_bytes, []) == most


@pytest.mark.parametrize(
    ("backlog", "budget", "given"),
    [
        ({"a": 5, "b": 9}, None, {"a": 5, "b": 9}),
        ({"a": 5, "b": 9}, 100, {"a": 5, "b": 9}),
        ({"a": 5, "b": 900}, 100, {"a": 5, "b": 95}),
        ({"a": 500, "b": 900}, 100, {"a": 50, "b": 50}),
        ({"a": 500, "b": 900, "c": 900}, 2, {"a": 1, "b": 1, "c": 1}),
    ],
)
def test_a_budget_is_shared_and_nobody_starves(backlog: dict[str, int], budget: int, given: dict[str, int]) -> None:
    assert share(backlog, budget) == given
