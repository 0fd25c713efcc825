"""What an executor writes, and what the driver makes of it."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from driftq.pipeline.lake.archive import commit_parts
from driftq.pipeline.lake.lake import Batch, Lake
from driftq.pipeline.lake.parts import Gap, Part, Places, problem_of, write_parts
from driftq.pipeline.lake.schemas import BAD_RECORDS, GAPS

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


def places(lake: Lake, *topics: str) -> Places:
    tables = {topic: str(lake.topic(topic).path) for topic in topics}
    return Places(tables, str(lake.root / "bad_records"), dict.fromkeys(topics, 5))


def told(lake: Lake, rows: list[dict[str, Any]], *topics: str) -> list[str]:
    batches = pa.Table.from_pylist(rows, SOURCE).to_batches(max_chunksize=2)
    return [line for batch in write_parts(batches, places(lake, *topics)) for line in batch["told"].to_pylist()]


def test_records_go_to_the_table_of_their_topic_by_day(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lines = told(lake, [record("a", 1), record("a", 2, day=1), record("b", 1), record("a", 3)], "a", "b")
    parts = [Part(**json.loads(line)) for line in lines]
    assert [(Path(part.table).name, part.day, part.rows) for part in parts] == [
        ("a", "1970-01-01", 2),
        ("a", "1970-01-02", 1),
        ("b", "1970-01-01", 1),
    ]
    commit_parts(lake, lines, Batch("query", 0), seen_ms=0)
    assert sorted(lake.topic("a").read(["seq"])["seq"].to_pylist()) == [1, 2, 3]
    assert lake.topic("a").read(["epoch"])["epoch"].to_pylist() == [5, 5, 5]
    assert set(lake.topic("b").read(["day"])["day"].to_pylist()) == {dt.date(1970, 1, 1)}
    assert lake.topic("b").read(["meta", "data"]).to_pylist() == [{"meta": [("m", "1")], "data": "{}"}]


def test_a_batch_that_runs_again_is_committed_once(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for _ in range(2):
        commit_parts(lake, told(lake, [record("a", 1), gap("a", 2, 4)], "a"), Batch("query", 0), seen_ms=0)
    assert lake.topic("a").read().num_rows == 1
    assert lake.table("gaps", GAPS).read().num_rows == 1


def test_what_is_lost_stands_in_gaps(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lines = told(lake, [gap("a", 1, 9), record("a", 10)], "a")
    assert Gap(**json.loads(lines[0])) == Gap("a", 5, 1, 9, "cap")
    commit_parts(lake, lines, Batch("query", 0), seen_ms=DAY_MS)
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
    lines = told(lake, [record("v1:a", 1, '{"no":"message"}'), record("v1:a", 2, '{"value":"v"}')], "v1:a")
    commit_parts(lake, lines, Batch("query", 0), seen_ms=0)
    assert lake.topic("v1:a").read(["seq"])["seq"].to_pylist() == [2]
    (bad,) = lake.table("bad_records", BAD_RECORDS).read().to_pylist()
    assert (bad["seq"], bad["data"]) == (1, '{"no":"message"}')
    assert "value" in bad["problem"]


def test_data_that_is_no_json_is_a_problem_and_any_json_is_none() -> None:
    assert problem_of("a", None) == "no data"
    assert problem_of("a", "{") is not None
    assert problem_of("a", '["any", "json"]') is None
    assert problem_of("v1:a", '["any", "json"]') is not None
