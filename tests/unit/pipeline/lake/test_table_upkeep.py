"""Compaction, erasure and rebuilding of tables, checked with `verify`."""

import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from driftq.pipeline.jobs.lake_jobs import compact_lake
from driftq.pipeline.lake.archive_check import TopicExtent, verify
from driftq.pipeline.lake.delta_tables import Lake
from driftq.pipeline.lake.table_upkeep import compact, erase, remove_leftovers, reset
from tests.unit.pipeline.lake.test_archive_check import FakeTopics, fill, one

NINE = list(range(1, 10))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path)
    for batch, seq in enumerate(NINE):
        fill(lake.topic("a"), "a", [seq], batch=batch)
    return lake


def verdict(lake: Lake, seqs: list[int], *, earliest: int = 1) -> str:
    return one(verify(lake, FakeTopics(a=(TopicExtent(1, earliest, 9), seqs)))).verdict


def test_small_files_are_merged_and_the_table_stays_equal(lake: Lake) -> None:
    done = compact(lake, lake.topic("a"), retain_hours=168)
    assert (done.files_before, done.files_after, done.removed) == (9, 1, 0)
    assert verdict(lake, NINE) == "equal"
    assert lake.topic("a").mark("a", 1) == 9
    again = compact(lake, lake.topic("a"), retain_hours=168)
    assert (again.files_before, again.files_after) == (1, 1)


def test_files_that_were_replaced_go_after_the_retention(lake: Lake) -> None:
    compact(lake, lake.topic("a"), retain_hours=168)
    directory = lake.topic("a").path
    assert len(list(directory.glob("day=*/*.parquet"))) == 10
    compact(lake, lake.topic("a"), retain_hours=0)
    assert len(list(directory.glob("day=*/*.parquet"))) == 1
    assert verdict(lake, NINE) == "equal"


def test_merged_files_have_statistics(lake: Lake) -> None:
    compact(lake, lake.topic("a"), retain_hours=168)
    (row,) = pa.table(DeltaTable(lake.topic("a").path).get_add_actions(flatten=True)).to_pylist()
    assert (row["min.seq"], row["max.seq"], row["null_count.seq"], row["null_count.ts"]) == (1, 9, 0, 0)
    assert row["min.ts"] == row["max.ts"]


def test_an_archive_continues_after_a_compaction(lake: Lake) -> None:
    compact(lake, lake.topic("a"), retain_hours=0)
    fill(lake.topic("a"), "a", [10], batch=9)
    assert one(verify(lake, FakeTopics(a=(TopicExtent(1, 1, 10), [*NINE, 10])))).verdict == "equal"


def test_files_of_tasks_that_were_killed_go_after_the_retention(lake: Lake) -> None:
    lake.staged.mkdir()
    (lake.staged / "part-1.parquet").touch()
    assert remove_leftovers(lake, retain_hours=1) == 0
    assert remove_leftovers(lake, retain_hours=0) == 1


def test_a_short_retention_keeps_the_files_that_a_running_archive_is_about_to_commit(lake: Lake) -> None:
    lake.staged.mkdir()
    fresh, old = lake.staged / "part-1.parquet", lake.staged / "part-2.parquet"
    fresh.touch()
    old.touch()
    os.utime(old, (0, 0))
    compact_lake(lake, 0)
    assert (fresh.exists(), old.exists()) == (True, False)


def test_erased_rows_are_gone_and_the_rest_is_equal(lake: Lake) -> None:
    table = lake.topic("a")
    fill(table, "a", [10, 11], batch=9, tag="it's me")
    assert erase(table, "it's me", ["other"]) == {}
    assert erase(table, "it's me", ["a", "other"]) == {"a": 2}
    assert erase(table, "it's me", ["a"]) == {}
    assert sorted(table.read(["seq"])["seq"].to_pylist()) == NINE
    assert one(verify(lake, FakeTopics(a=(TopicExtent(1, 1, 11), NINE)))).differences == []


def test_rows_that_only_the_lake_has_are_erased_too(lake: Lake) -> None:
    fill(lake.topic("a"), "a", [10, 11], batch=9, tag="t")
    erase(lake.topic("a"), "t", ["a"])
    assert one(verify(lake, FakeTopics(a=(TopicExtent(1, 12, 11), [])))).differences == []


def test_a_reset_removes_what_the_topic_has_and_keeps_the_rest(lake: Lake) -> None:
    table = lake.topic("a")
    assert reset(table, "a", 1, 4).kept == 3
    assert (table.mark("a", 1), sorted(table.read(["seq"])["seq"].to_pylist())) == (3, [1, 2, 3])
    fill(table, "a", [4, 5, 6, 7, 8, 9], batch=20)
    assert verdict(lake, [4, 5, 6, 7, 8, 9], earliest=4) == "equal"


def test_a_reset_leaves_other_topics_of_the_table_alone(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    table = lake.shared("all")
    fill(table, "a", [1, 2])
    fill(table, "b", [1, 2], batch=1)
    reset(table, "a", 1, 1)
    assert sorted(table.read(["topic"])["topic"].to_pylist()) == ["b", "b"]
    assert (table.mark("a", 1), table.mark("b", 1)) == (0, 2)


def test_a_reset_goes_round_a_file_that_cannot_be_read(lake: Lake) -> None:
    table = lake.topic("a")
    Path(table.files()[0]).write_bytes(b"PAR1 not really PAR1")
    assert reset(table, "a", 1, 1).unreadable == 1
    fill(table, "a", NINE, batch=20)
    assert verdict(lake, NINE) == "equal"
