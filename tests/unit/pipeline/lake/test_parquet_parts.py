"""What an executor writes, and what the driver makes of it."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.lake.archive_commit import CommitPlan, CommittedBatch, commit_parts, places_of, plan_batch
from driftq.pipeline.lake.delta_tables import Lake, LakeTable, WriterBatch
from driftq.pipeline.lake.parquet_parts import ArchivedGap, ParquetPart, problem_of, write_parts
from driftq.pipeline.lake.table_layout import BAD_RECORDS, GAPS, RECORDS
from driftq.pipeline.offsets import OffsetRange, TopicOffset

DAY_MS = 86_400_000
SOURCE = pa.schema(
    [
        ("topic", pa.string()),
        ("seq", pa.int64()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("node", pa.string()),
        ("tag", pa.string()),
        ("meta", pa.string()),
        ("data", pa.string()),
        ("kind", pa.string()),
        ("gap_from", pa.int64()),
        ("gap_to", pa.int64()),
        ("reason", pa.string()),
    ]
)


def record(topic: str, seq: int, data: str = "{}", *, day: int = 0) -> dict[str, Any]:
    at = dt.datetime.fromtimestamp(day * 86_400 + seq, dt.UTC)
    return {"topic": topic, "seq": seq, "ts": at, "meta": json.dumps({"m": str(seq)}), "data": data, "kind": "record"}


def gap(topic: str, first: int, last: int) -> dict[str, Any]:
    return {"topic": topic, "kind": "tombstone", "gap_from": first, "gap_to": last, "reason": "cap"}


def reading(lake: Lake, *parts: OffsetRange) -> CommitPlan:
    return plan_batch(
        lake, {part.topic: part for part in parts}, {part.topic: lake.topic(part.topic) for part in parts}
    )


def told(lake: Lake, plan: CommitPlan, rows: list[dict[str, Any]]) -> list[str]:
    batches = pa.Table.from_pylist(rows, SOURCE).to_batches(max_chunksize=2)
    return [line for batch in write_parts(batches, places_of(lake, plan)) for line in batch["told"].to_pylist()]


def archived(lake: Lake, batch: WriterBatch, rows: list[dict[str, Any]], *parts: OffsetRange) -> CommittedBatch:
    """A batch that reads these ranges, from the plan to the commit."""
    plan = reading(lake, *parts)
    return commit_parts(lake, plan, told(lake, plan, rows), batch, seen_ms=0)


def seqs(lake: Lake, topic: str) -> list[int]:
    return sorted(lake.topic(topic).read(["seq"])["seq"].to_pylist())


def gaps(lake: Lake) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values())[:-1] for row in lake.table("gaps", GAPS).read().to_pylist())


def test_records_go_to_the_table_of_their_topic_by_day(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    plan = reading(lake, OffsetRange("a", 5, 0, 3), OffsetRange("b", 5, 0, 1))
    lines = told(lake, plan, [record("a", 1), record("a", 2, day=1), record("b", 1), record("a", 3)])
    parts = [ParquetPart(**json.loads(line)) for line in lines]
    assert [(Path(part.table).name, part.day, part.rows) for part in parts] == [
        ("a", "1970-01-01", 2),
        ("a", "1970-01-02", 1),
        ("b", "1970-01-01", 1),
    ]
    commit_parts(lake, plan, lines, WriterBatch("query", 0), seen_ms=0)
    assert seqs(lake, "a") == [1, 2, 3]
    assert lake.topic("a").read(["epoch"])["epoch"].to_pylist() == [5, 5, 5]
    assert set(lake.topic("b").read(["day"])["day"].to_pylist()) == {dt.date(1970, 1, 1)}
    assert lake.topic("b").read(["meta", "data"]).to_pylist() == [{"meta": [("m", "1")], "data": "{}"}]


def test_a_batch_that_runs_again_is_committed_once(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for _ in range(2):
        archived(lake, WriterBatch("query", 0), [record("a", 1), gap("a", 2, 4)], OffsetRange("a", 5, 0, 4))
    assert lake.topic("a").read().num_rows == 1
    assert lake.table("gaps", GAPS).read().num_rows == 1


def test_what_another_query_has_archived_is_left_out(tmp_path: Path) -> None:
    """Queries of other selections read the same topic, each from where it was."""
    lake = Lake(tmp_path)
    bad = record("a", 3, "no json")
    archived(lake, WriterBatch("one", 0), [record("a", 1), record("a", 2)], OffsetRange("a", 5, 0, 2))
    archived(
        lake, WriterBatch("other", 0), [record("a", 1), record("a", 2), bad, record("a", 4)], OffsetRange("a", 5, 0, 4)
    )
    done = archived(lake, WriterBatch("one", 1), [bad, record("a", 4), record("a", 5)], OffsetRange("a", 5, 2, 5))
    assert done == CommittedBatch(1, 0, 0)
    assert archived(lake, WriterBatch("other", 1), [record("a", 5)], OffsetRange("a", 5, 4, 5)) == CommittedBatch(
        0, 0, 0
    )
    assert seqs(lake, "a") == [1, 2, 4, 5]
    assert lake.table("bad_records", BAD_RECORDS).read(["seq"])["seq"].to_pylist() == [3]


def test_a_gap_is_told_once_and_without_what_was_archived_before_it_was_lost(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    archived(lake, WriterBatch("one", 0), [record("a", 1), record("a", 2)], OffsetRange("a", 5, 0, 2))
    for query in ("other", "third"):
        archived(lake, WriterBatch(query, 0), [gap("a", 1, 9)], OffsetRange("a", 5, 0, 9))
    assert gaps(lake) == [("a", 5, 3, 9, "cap")]


def test_what_a_crash_left_undone_is_done_by_another_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gaps and bad records were committed, and the records behind them not."""
    lake = Lake(tmp_path)
    rows = [gap("a", 1, 2), record("a", 3, "no json"), record("a", 4)]
    plan = reading(lake, OffsetRange("a", 5, 0, 4))
    with monkeypatch.context() as crash:
        add = LakeTable.add
        crash.setattr(
            LakeTable, "add", lambda table, *told, **more: table.schema is RECORDS or add(table, *told, **more)
        )
        commit_parts(lake, plan, told(lake, plan, rows), WriterBatch("one", 0), seen_ms=0)
    assert seqs(lake, "a") == []
    assert archived(lake, WriterBatch("other", 0), rows, OffsetRange("a", 5, 0, 4)) == CommittedBatch(1, 0, 0)
    assert archived(lake, WriterBatch("one", 0), rows, OffsetRange("a", 5, 0, 4)) == CommittedBatch(0, 0, 0)
    assert (seqs(lake, "a"), len(gaps(lake))) == ([4], 1)
    assert lake.table("bad_records", BAD_RECORDS).read().num_rows == 1


def test_two_queries_at_the_same_time_write_nothing_twice(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    late = reading(lake, OffsetRange("a", 5, 0, 2))
    lines = told(lake, late, [record("a", 1), record("a", 2)])
    archived(lake, WriterBatch("one", 0), [record("a", 1)], OffsetRange("a", 5, 0, 1))
    with pytest.raises(PipelineError, match="another query is writing topic 'a'"):
        commit_parts(lake, late, lines, WriterBatch("other", 0), seen_ms=0)
    assert seqs(lake, "a") == [1]


def test_a_topic_that_was_made_again_is_archived_from_its_beginning(tmp_path: Path) -> None:
    """The notice that the earlier one ended belongs to that one, behind all that any query has of it."""
    lake = Lake(tmp_path)
    archived(lake, WriterBatch("one", 0), [record("a", 1), record("a", 2), record("a", 3)], OffsetRange("a", 5, 0, 3))
    rows = [gap("a", 3, 2) | {"reason": "recreated"}, record("a", 1)]
    archived(lake, WriterBatch("other", 1), rows, OffsetRange("a", 6, 0, 1, missed=TopicOffset(5, 2, 0)))
    assert lake.topic("a").read(["epoch", "seq"]).sort_by(
        [("epoch", "ascending"), ("seq", "ascending")]
    ).to_pylist() == [
        {"epoch": 5, "seq": 1},
        {"epoch": 5, "seq": 2},
        {"epoch": 5, "seq": 3},
        {"epoch": 6, "seq": 1},
    ]
    assert gaps(lake) == [("a", 5, 4, 3, "recreated")]


def test_what_a_topic_gets_after_it_has_lost_its_end_is_not_taken_for_what_it_had(tmp_path: Path) -> None:
    """A crash took seqs 2 and 3, and they were given to others: in the same epoch."""
    lake = Lake(tmp_path)
    archived(lake, WriterBatch("one", 0), [record("a", 1), record("a", 2), record("a", 3)], OffsetRange("a", 5, 0, 3))
    again = OffsetRange("a", 5, 0, 2, missed=TopicOffset(5, 3, 0))
    for query in ("one", "other"):
        archived(lake, WriterBatch(query, 1), [record("a", 1), record("a", 2, '"new"')], again)
    for query in ("one", "other"):
        archived(lake, WriterBatch(query, 2), [record("a", 3, '"new"')], OffsetRange("a", 5, 2, 3))
    rows = lake.topic("a").read(["seq", "data"]).to_pylist()
    assert sorted(row["seq"] for row in rows if row["data"] == '"new"') == [2, 3]
    assert len(rows) == 3 + 3


def test_what_else_such_a_topic_gets_is_not_taken_for_what_it_had_either(tmp_path: Path) -> None:
    """What was bad or lost before the crash was so further below than where the topic was left."""
    lake = Lake(tmp_path)
    archived(lake, WriterBatch("one", 0), [record("a", 1, "no json"), gap("a", 2, 3)], OffsetRange("a", 5, 0, 3))
    archived(lake, WriterBatch("one", 1), [record("a", 4), record("a", 5)], OffsetRange("a", 5, 3, 5))
    rows = [record("a", 1, "bad again"), gap("a", 2, 2), record("a", 3)]
    archived(lake, WriterBatch("one", 2), rows, OffsetRange("a", 5, 0, 3, missed=TopicOffset(5, 5, 0)))
    bad = lake.table("bad_records", BAD_RECORDS).read(["data"])["data"].to_pylist()
    assert sorted(bad) == ["bad again", "no json"]
    assert gaps(lake) == [("a", 5, 2, 2, "cap"), ("a", 5, 2, 3, "cap")]
    assert seqs(lake, "a") == [3, 4, 5]


def test_a_topic_that_comes_back_empty_is_archived_from_its_start_all_the_same(tmp_path: Path) -> None:
    """The batch that tells of the new life has no row, and none that is bad; those behind have the seqs of others."""
    lake = Lake(tmp_path)
    old = [record("a", 1, "no json"), record("a", 2), record("a", 3, "no json")]
    archived(lake, WriterBatch("one", 0), old, OffsetRange("a", 5, 0, 3))
    for _ in range(2):
        archived(lake, WriterBatch("one", 1), [], OffsetRange("a", 5, 0, 1, missed=TopicOffset(5, 3, 0)))
    archived(
        lake, WriterBatch("one", 2), [record("a", 2, '"new"'), record("a", 3, "bad again")], OffsetRange("a", 5, 1, 3)
    )
    assert sorted(lake.topic("a").read(["data"])["data"].to_pylist()) == ['"new"', "{}"]
    bad = lake.table("bad_records", BAD_RECORDS).read(["data"])["data"].to_pylist()
    assert sorted(bad) == ["bad again", "no json", "no json"]


def test_a_topic_is_in_one_table_of_a_lake(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    assert lake.target("a", "all").path == lake.shared("all").path
    archived(lake, WriterBatch("one", 0), [record("a", 1)], OffsetRange("a", 5, 0, 1))
    assert lake.target("a", None).path == lake.topic("a").path
    assert lake.target("b", "all").path == lake.shared("all").path
    with pytest.raises(PipelineError, match="has topic 'a' in topics/a"):
        lake.target("a", "all")
    parts = {"b": OffsetRange("b", 5, 0, 1)}
    plan = plan_batch(lake, parts, {"b": lake.shared("all")})
    commit_parts(lake, plan, told(lake, plan, [record("b", 1)]), WriterBatch("two", 0), seen_ms=0)
    for shared in (None, "another"):
        with pytest.raises(PipelineError, match="has topic 'b' in tables/all"):
            lake.target("b", shared)


def test_what_is_lost_stands_in_gaps(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    plan = reading(lake, OffsetRange("a", 5, 0, 10))
    lines = told(lake, plan, [gap("a", 1, 9), record("a", 10)])
    assert ArchivedGap(**json.loads(lines[0])) == ArchivedGap("a", 5, 1, 9, "cap")
    commit_parts(lake, plan, lines, WriterBatch("query", 0), seen_ms=DAY_MS)
    assert lake.table("gaps", GAPS).read().to_pylist() == [
        {
            "topic": "a",
            "epoch": 5,
            "gap_from": 1,
            "gap_to": 9,
            "reason": "cap",
            "seen_ts": dt.datetime(1970, 1, 2, tzinfo=dt.UTC),
        }
    ]


def test_what_cannot_be_read_stands_in_bad_records_whole(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    rows = [record("@a", 1, '{"no":"message"}'), record("@a", 2, '{"value":"v"}')]
    archived(lake, WriterBatch("query", 0), rows, OffsetRange("@a", 5, 0, 2))
    assert seqs(lake, "@a") == [2]
    (bad,) = lake.table("bad_records", BAD_RECORDS).read().to_pylist()
    assert (bad["seq"], bad["data"]) == (1, '{"no":"message"}')
    assert "value" in bad["problem"]


def test_data_that_is_no_json_is_a_problem_and_any_json_is_none() -> None:
    assert problem_of("a", None) == "no data"
    assert problem_of("a", "{") is not None
    assert problem_of("a", '["any", "json"]') is None
    assert problem_of("@a", '["any", "json"]') is not None
