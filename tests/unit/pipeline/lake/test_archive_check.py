"""`verify` says equal, or what differs."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from driftq.pipeline.lake.archive_check import ArchiveFinding, TopicExtent, verify
from driftq.pipeline.lake.delta_tables import Lake, LakeTable, WriterBatch
from driftq.pipeline.lake.lake_owner import claim
from driftq.pipeline.lake.table_layout import RECORDS


class FakeTopics:
    """A server with topics, each a list of seqs."""

    def __init__(self, **topics: tuple[TopicExtent, list[int]]) -> None:
        self._topics = topics

    def standing(self, topic: str) -> TopicExtent | None:
        found = self._topics.get(topic)
        return None if found is None else found[0]

    def seqs(self, topic: str, first: int, last: int) -> Iterator[NDArray[np.int64]]:
        seqs = [seq for seq in self._topics[topic][1] if first <= seq <= last]
        for at in range(0, len(seqs), 2):
            yield np.array(seqs[at : at + 2], np.int64)


def fill(table: LakeTable, topic: str, seqs: list[int], *, epoch: int = 1, batch: int = 0) -> None:
    count = len(seqs)
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    rows = pa.table(
        {
            "topic": [topic] * count,
            "epoch": [epoch] * count,
            "seq": seqs,
            "ts": [at] * count,
            "node": [None] * count,
            "tag": [None] * count,
            "meta": [None] * count,
            "data": ["{}"] * count,
            "day": [at.date()] * count,
        },
        RECORDS,
    )
    assert table.append(rows, WriterBatch(f"filler-{epoch}", batch))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def one(findings: list[ArchiveFinding]) -> ArchiveFinding:
    (finding,) = findings
    return finding


def test_the_same_seqs_are_equal(lake: Lake) -> None:
    fill(lake.topic("a"), "a", [3, 1, 2])
    found = one(verify(lake, FakeTopics(a=(TopicExtent(1, 1, 3), [1, 2, 3]))))
    assert found == ArchiveFinding("a", "equal", 3, 3, "1-3", "1-3", [])


def test_what_retention_took_from_the_topic_is_no_difference(lake: Lake) -> None:
    fill(lake.topic("a"), "a", [1, 2, 3, 4])
    assert one(verify(lake, FakeTopics(a=(TopicExtent(1, 3, 4), [3, 4])))).verdict == "equal"


def test_a_record_that_is_missing_is_named(lake: Lake) -> None:
    fill(lake.topic("a"), "a", [1, 3])
    found = one(verify(lake, FakeTopics(a=(TopicExtent(1, 1, 3), [1, 2, 3]))))
    assert found.differences == ["1 live records are not in the lake: seq 2"]


def test_a_row_that_is_there_twice_is_counted(lake: Lake) -> None:
    fill(lake.topic("a"), "a", [1, 2])
    fill(lake.topic("a"), "a", [2], batch=1)
    found = one(verify(lake, FakeTopics(a=(TopicExtent(1, 1, 2), [1, 2]))))
    assert found.differences == ["1 rows are in the lake more than once"]


def test_a_lake_that_is_behind_says_how_far(lake: Lake) -> None:
    fill(lake.topic("a"), "a", [1])
    found = one(verify(lake, FakeTopics(a=(TopicExtent(1, 1, 5), [1, 2, 3, 4, 5]))))
    assert found.differences == ["the lake is 4 records behind: seq 2-5"]


def test_a_record_deleted_since_is_told(lake: Lake) -> None:
    fill(lake.topic("a"), "a", [1, 2, 3])
    found = one(verify(lake, FakeTopics(a=(TopicExtent(1, 1, 3), [1, 3]))))
    assert found.differences == ["1 rows of the lake are no longer live (deleted since): seq 2"]


def test_rows_of_an_earlier_topic_of_the_same_name_are_left_alone(lake: Lake) -> None:
    fill(lake.topic("a"), "a", [1, 2, 3, 4, 5], epoch=1)
    fill(lake.topic("a"), "a", [1, 2], epoch=2)
    assert one(verify(lake, FakeTopics(a=(TopicExtent(2, 1, 2), [1, 2])))).verdict == "equal"


def test_topics_that_share_a_table_are_compared_one_by_one(lake: Lake) -> None:
    fill(lake.shared("all"), "a", [1, 2])
    fill(lake.shared("all"), "b", [1], batch=1)
    live = FakeTopics(a=(TopicExtent(1, 1, 2), [1, 2]), b=(TopicExtent(1, 1, 2), [1, 2]))
    assert [(found.topic, found.verdict) for found in verify(lake, live)] == [("a", "equal"), ("b", "differs")]


def test_a_topic_that_is_gone_differs(lake: Lake) -> None:
    fill(lake.topic("a"), "a", [1])
    assert one(verify(lake, FakeTopics())).differences == ["there is no such topic on the server"]


def test_a_topic_that_was_never_archived_differs(lake: Lake) -> None:
    found = one(verify(lake, FakeTopics(a=(TopicExtent(1, 1, 1), [1])), ["a"]))
    assert found.differences == ["the lake is 1 records behind: seq 1"]


class Evicting(FakeTopics):
    """Retention takes two records behind the first question."""

    def seqs(self, topic: str, first: int, last: int) -> Iterator[NDArray[np.int64]]:
        standing, seqs = self._topics[topic]
        self._topics[topic] = (standing._replace(earliest=first + 2, head=last + 2), [*seqs[2:], last + 1, last + 2])
        return super().seqs(topic, first, last)


def test_what_retention_takes_while_it_is_compared_is_no_delete(lake: Lake) -> None:
    fill(lake.topic("a"), "a", [1, 2, 3, 4])
    found = one(verify(lake, Evicting(a=(TopicExtent(1, 1, 4), [1, 2, 3, 4]))))
    assert found == ArchiveFinding("a", "equal", 2, 2, "3-4", "3-4", [])


class Vanishing(FakeTopics):
    """A topic that is deleted behind the first question."""

    def seqs(self, topic: str, first: int, last: int) -> Iterator[NDArray[np.int64]]:
        found = list(super().seqs(topic, first, last))
        del self._topics[topic]
        return iter(found)


def test_a_topic_that_is_deleted_while_it_is_compared_differs(lake: Lake) -> None:
    fill(lake.topic("a"), "a", [1])
    found = one(verify(lake, Vanishing(a=(TopicExtent(1, 1, 1), [1]))))
    assert found.differences == ["the topic was deleted during the comparison; verify again"]


def test_a_topic_of_another_server_differs_whatever_its_seqs_are(lake: Lake) -> None:
    claim(lake, "ours")
    fill(lake.topic("a"), "a", [1])
    assert one(verify(lake, FakeTopics(a=(TopicExtent(1, 1, 1, "ours"), [1])))).verdict == "equal"
    found = one(verify(lake, FakeTopics(a=(TopicExtent(1, 1, 1, "another"), [1]))))
    assert (found.verdict, found.lake_rows, found.live_rows) == ("differs", 1, 0)
    assert "this is server another" in found.differences[0]
