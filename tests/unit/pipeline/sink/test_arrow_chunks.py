"""Rows on their way out, without a JVM."""

import pyarrow as pa
import pytest
from msgspec import json

from driftq.model.limits import Limits
from driftq.pipeline.errors import PipelineError
from driftq.pipeline.sink import arrow_chunks as outgoing
from driftq.pipeline.sink.arrow_chunks import body_of, check_columns, chunks, cut, without_null

RECORD = {"data": "string", "tag": "string", "node": "string", "meta": "map<string,string>"}


def batch(count: int, first: int = 0, **more: list[object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"data": [str(first + row) for row in range(count)], **more})


def numbers(found: list[outgoing.Chunk]) -> list[int]:
    return [int(text) for chunk in found for text in chunk.rows["data"].to_pylist()]


def test_what_our_source_gives_can_be_written_as_it_is() -> None:
    source = {"topic": "string", "seq": "bigint", "ts": "timestamp", **RECORD}
    check_columns(source, routed=False)
    found = list(chunks(iter([batch(2, topic=["a", "a"], seq=[1, 2])]), "out"))
    assert [chunk.topic for chunk in found] == ["out"]
    assert found[0].rows.column_names == ["data"]


@pytest.mark.parametrize(
    ("columns", "routed", "said"),
    [
        ({"tag": "string"}, False, "to_json"),
        ({"data": "struct<a:int>"}, False, "must be string"),
        ({"data": "string", "meta": "map<string,int>"}, False, "must be map"),
        ({"data": "string", "total": "bigint"}, False, "'total'"),
        ({"data": "string"}, True, "option 'topic'"),
        ({"data": "string", "topic": "bigint"}, True, "option 'topic'"),
        ({"data": "string", "key": "string"}, False, "'key' is not part of a record"),
        ({"data": "string", "reason": "string"}, False, "'reason'"),
        ({"data": "string", "ts": "timestamp"}, False, "'ts'"),
        ({"data": "string", "topic": "string"}, False, "'topic'"),
        ({"data": "string", "seq": "bigint", "kind": "string"}, False, "'kind'"),
        ({"data": "string", "seq": "bigint", "value": "string"}, False, "'value'"),
        ({"data": "string", "seq": "int"}, False, "'seq'"),
    ],
)
def test_a_dataframe_that_is_no_records_is_refused_with_what_to_do(
    columns: dict[str, str], routed: bool, said: str
) -> None:
    with pytest.raises(PipelineError, match=said):
        check_columns(columns, routed=routed)


def test_batches_become_chunks_of_a_call_in_their_order() -> None:
    found = list(chunks(iter([batch(7000), batch(7000, 7000), batch(1, 14_000)]), "t"))
    assert [len(chunk.rows) for chunk in found] == [10_000, 4001]
    assert numbers(found) == list(range(14_001))
    assert Limits().batch_records_max == outgoing.CHUNK_ROWS


def test_large_records_go_in_more_and_smaller_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "CHUNK_BYTES", 100)
    rows = pa.table({"data": ["x" * 40] * 7})
    assert [len(piece) for piece in cut(rows)] == [2, 2, 2, 1]
    assert [len(piece) for piece in cut(pa.table({"data": ["x" * 400] * 2}))] == [1, 1]


def test_rows_go_to_the_topics_they_name() -> None:
    found = list(chunks(iter([batch(4, topic=["a", "b", "a", "b"]), batch(1, 4, topic=["a"])]), None))
    assert {chunk.topic: chunk.rows["data"].to_pylist() for chunk in found} == {"a": ["0", "2", "4"], "b": ["1", "3"]}
    with pytest.raises(PipelineError, match="topic"):
        list(chunks(iter([batch(1, topic=pa.array([None], pa.string()))]), None))


def test_meta_is_sent_as_json_and_a_column_without_values_not_at_all() -> None:
    meta = pa.array([[("k", "v")], None], pa.map_(pa.string(), pa.string()))
    empty = pa.nulls(2, pa.string())
    [chunk] = chunks(iter([batch(2, meta=meta, tag=empty)]), "t")
    sent = pa.ipc.open_stream(body_of(chunk.rows)).read_all()
    assert sent.column_names == ["data", "meta"]
    assert [text and json.decode(text) for text in sent["meta"].to_pylist()] == [{"k": "v"}, None]


def test_rows_without_data_are_set_apart() -> None:
    kept, missing = without_null(pa.table({"data": ["1", None, "3"], "tag": ["a", "b", "c"]}))
    assert (kept["data"].to_pylist(), missing["tag"].to_pylist()) == (["1", "3"], ["b"])
    assert len(without_null(pa.table({"data": ["1"]}))[1]) == 0


def test_every_read_can_be_written_as_it_is() -> None:
    place = {"topic": "string", "seq": "bigint", "ts": "timestamp"}
    gaps = {"kind": "string", "gap_from": "bigint", "gap_to": "bigint", "reason": "string"}
    broker = {"partition": "int", "key": "string", "value": "string", "envelope": "string", "routing": "string"}
    for more in ({}, gaps, broker, gaps | broker):
        check_columns(place | RECORD | more, routed=True)
    check_columns({"seq": "bigint", "data": "string"}, routed=False)


def test_a_row_that_stands_for_a_gap_is_refused_by_name() -> None:
    gap = {"kind": ["record", "tombstone"], "gap_from": [None, 7], "gap_to": [None, 9], "reason": [None, "evicted"]}
    rows = pa.RecordBatch.from_pydict({"topic": ["a", "a"], "data": ["1", None], **gap})
    with pytest.raises(PipelineError, match=r"1 rows are tombstones.*7 to 9 of topic 'a' \(evicted\).*kind = 'record'"):
        list(chunks(iter([rows]), "t"))
