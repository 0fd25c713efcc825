"""Figures per minute: added up, exactly once."""

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.jobs.rollup.minute_figures import ROLLUP, Minute, age_of, bucket_of
from driftq.pipeline.jobs.rollup.rollup_job import add_minutes
from driftq.pipeline.lake.delta_tables import Lake, WriterBatch
from driftq.pipeline.offsets import OffsetRange, TopicOffset

AT = dt.datetime(2026, 1, 1, 12, 30, tzinfo=dt.UTC)


@pytest.mark.parametrize("age", [0, 1, 2, 9, 100, 1234, 99_999, 86_400_000])
def test_a_bucket_is_right_to_within_five_per_cent(age: int) -> None:
    assert age <= age_of(bucket_of(age)) <= age * 1.05 + 1


def test_percentiles_come_from_all_ages() -> None:
    minute = Minute(ages={})
    for age in range(1, 1001):
        minute.add(bucket=bucket_of(age), records=1, size=10, errors=0, retries=0)
    assert (minute.records, minute.bytes) == (1000, 10_000)
    assert minute.percentile(0.5) == pytest.approx(500, rel=0.06)
    assert minute.percentile(0.99) == pytest.approx(990, rel=0.06)


def test_a_minute_without_records_has_no_percentile_and_no_rate() -> None:
    row = Minute(errors=1, ages={}).row(("@work", "t", AT))
    assert (row["p50_age_ms"], row["error_rate"], row["errors"]) == (None, None, 1)


def counted(**columns: Any) -> pa.Table:
    row = {
        "topic": "a",
        "tenant_id": "",
        "minute": AT,
        "bucket": 3,
        "records": 2,
        "bytes": 20,
        "errors": 1,
        "retries": 4,
    }
    types = {"minute": pa.timestamp("us", tz="UTC"), "bucket": pa.int32()}
    return pa.table({name: pa.array([value], types.get(name)) for name, value in (row | columns).items()})


def test_a_minute_grows_with_every_batch_and_with_none_twice(tmp_path: Path) -> None:
    table = Lake(tmp_path).table("rollup", ROLLUP)
    assert add_minutes(table, counted(), WriterBatch("query", 0))
    assert not add_minutes(table, counted(), WriterBatch("query", 0))
    assert add_minutes(table, counted(bucket=50), WriterBatch("query", 1))
    assert add_minutes(table, counted(minute=AT - dt.timedelta(hours=3), records=7), WriterBatch("query", 2))
    late, row = table.read().sort_by("minute").to_pylist()
    assert late["records"] == 7
    assert (row["records"], row["bytes"], row["errors"], row["retries"]) == (4, 40, 2, 8)
    assert (row["error_rate"], row["retry_rate"]) == (0.5, 2.0)
    assert row["p50_age_ms"] == age_of(3)
    assert row["p99_age_ms"] == age_of(50)


def test_a_table_knows_how_far_it_has_counted_a_topic(tmp_path: Path) -> None:
    table = Lake(tmp_path).table("rollup", ROLLUP)
    moves = table.moves([OffsetRange("a", 5, 0, 2)])
    assert add_minutes(table, counted(), WriterBatch("query", 0), list(moves.values()))
    assert table.moves([OffsetRange("a", 5, 0, 9)])["a"].cut == 2
    with pytest.raises(PipelineError, match="another query is writing topic 'a'"):
        add_minutes(table, counted(), WriterBatch("other", 0), list(moves.values()))
    assert table.read(["records"])["records"].to_pylist() == [2]


def test_a_topic_that_comes_back_empty_is_counted_from_its_start(tmp_path: Path) -> None:
    table = Lake(tmp_path).table("rollup", ROLLUP)
    assert add_minutes(
        table, counted(), WriterBatch("query", 0), list(table.moves([OffsetRange("a", 5, 0, 3)]).values())
    )
    again = table.moves([OffsetRange("a", 5, 0, 1, missed=TopicOffset(5, 3, 0))])
    assert add_minutes(table, counted()[:0], WriterBatch("query", 1), list(again.values()))
    assert table.moves([OffsetRange("a", 5, 1, 2)])["a"].cut == 1
    assert not add_minutes(
        table, counted()[:0], WriterBatch("query", 2), list(table.moves([OffsetRange("a", 5, 1, 2)]).values())
    )
