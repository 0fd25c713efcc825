"""Arrow batches for Spark: exactly the columns that were asked for, of exactly the types that Spark wants."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from driftq.pipeline import PipelineError
from driftq.pipeline.source.read_columns import (
    Projection,
    arrow_schema,
    base_columns,
    base_schema,
    check_nulls,
    check_schema,
    ddl,
    names_of,
)
from driftq.pipeline.source.row_filters import Condition, apply, from_options, from_time
from driftq.pipeline.source.split_plan import SeqGap

_TYPES = {
    "topic": pa.string(),
    "seq": pa.int64(),
    "ts": pa.timestamp("us", "UTC"),
    "tag": pa.string(),
    "meta": pa.map_(pa.string(), pa.string()),
    "data": pa.string(),
    "kind": pa.string(),
    "gap_from": pa.int64(),
    "gap_to": pa.int64(),
    "reason": pa.string(),
    "partition": pa.int32(),
    "key": pa.string(),
    "value": pa.string(),
    "envelope": pa.string(),
    "headers": pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))),
}


def _projection(*names: str) -> Projection:
    return Projection(pa.schema([pa.field(name, _TYPES[name]) for name in names]))


def _base(**columns: list[Any]) -> Any:
    return pa.RecordBatch.from_pydict(columns, schema=base_schema(tuple(columns)))


def test_the_schema_is_the_documented_one() -> None:
    assert ddl(names_of(with_gaps=False, with_v1=False)) == (
        "topic string, seq bigint, ts timestamp_ltz, node string, tag string, meta map<string,string>, data string"
    )
    assert ddl(names_of(with_gaps=True, with_v1=True)).endswith(
        "kind string, gap_from bigint, gap_to bigint, reason string, "
        "partition int, key string, value string, envelope string, routing string"
    )


def test_a_column_that_a_topic_does_not_have_is_refused() -> None:
    check_schema([("seq", "bigint"), ("data", "string")])
    with pytest.raises(PipelineError, match="no column 'offset'"):
        check_schema([("offset", "bigint")])
    with pytest.raises(PipelineError, match="'seq' is bigint, but the schema has int"):
        check_schema([("seq", "int")])


def test_a_column_that_may_be_null_is_not_promised_otherwise() -> None:
    check_nulls(["topic", "seq", "ts", "data"], with_gaps=False)
    with pytest.raises(PipelineError, match="'tag' may be null"):
        check_nulls(["seq", "tag"], with_gaps=False)
    with pytest.raises(PipelineError, match="'ts' may be null"):
        check_nulls(["ts"], with_gaps=True)


def test_what_the_server_puts_into_meta_is_the_same_text_on_every_path() -> None:
    """Spark's own reader of JSON leaves out blanks, and what is not ASCII as it is."""
    said = '{"_topics_router":{"router":"é","source_seq":1},"k":"v"}'
    projection = Projection(pa.schema([("meta", pa.map_(pa.utf8(), pa.utf8()))]))
    (found,) = projection.rows("t", _base(seq=[1], meta=[said])).column(0).to_pylist()
    assert found == [("_topics_router", '{"router":"é","source_seq":1}'), ("k", "v")]


def test_only_what_is_needed_is_read() -> None:
    assert base_columns(["topic", "data"]) == ["seq", "data"]
    assert base_columns(["partition", "key"], {"node"}) == ["seq", "node", "tag", "data"]


def test_columns_come_in_the_order_of_the_schema() -> None:
    made = _projection("data", "topic", "ts", "seq", "kind", "reason").rows(
        "t", _base(seq=[4, 5], ts=[1_000_000, 2_000_000], data=['"a"', "{}"])
    )
    assert made.to_pylist()[1] == {
        "data": "{}",
        "topic": "t",
        "ts": datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC),
        "seq": 5,
        "kind": "record",
        "reason": None,
    }


def test_meta_is_a_map_of_texts_whatever_the_server_put_there() -> None:
    made = _projection("meta").rows("t", _base(seq=[1, 2], meta=['{"a":"1","$dead_letter_attempts":3}', None]))
    assert made.column(0).to_pylist() == [[("a", "1"), ("$dead_letter_attempts", "3")], None]


def test_headers_are_the_entries_of_meta_as_kafka_has_them() -> None:
    made = _projection("headers").rows("t", _base(seq=[1, 2], meta=['{"a":"\u00e9","n":3}', None]))
    assert made.column(0).to_pylist() == [
        [{"key": "a", "value": "\u00e9".encode()}, {"key": "n", "value": b"3"}],
        None,
    ]


def test_messages_of_the_broker_have_columns_and_other_records_have_none() -> None:
    made = _projection("partition", "key", "value", "envelope").rows(
        "@t",
        _base(seq=[1, 2], tag=["p3", "pear"], data=['{"key":"k","value":"v","envelope":{"run_id":"r"}}', "[1]"]),
    )
    assert made.to_pylist() == [
        {"partition": 3, "key": "k", "value": "v", "envelope": '{"run_id":"r"}'},
        {"partition": None, "key": None, "value": None, "envelope": None},
    ]


def test_a_gap_is_a_row_at_the_last_seq_that_is_gone() -> None:
    unsure = _projection("seq", "reason").gaps("t", [SeqGap(3, 9, "crash", at_most=True)])
    assert unsure.to_pylist() == [{"seq": 9, "reason": "crash, at most"}]
    made = _projection("topic", "seq", "data", "kind", "gap_from", "gap_to", "reason").gaps("t", [SeqGap(3, 9, "cap")])
    assert made.to_pylist() == [
        {"topic": "t", "seq": 9, "data": None, "kind": "tombstone", "gap_from": 3, "gap_to": 9, "reason": "cap"}
    ]


def test_filters_are_exact_and_null_never_passes() -> None:
    base = _base(seq=[1, 2, 3, 4], ts=[1_000_000, 2_000_000, 3_000_000, 4_000_000], tag=["a1", None, "b", "a2"])

    def passed(*tests: Condition) -> list[int]:
        return [int(seq) for seq in apply(tests, base).column(0).to_pylist()]

    assert passed(*from_options("b", None, None)) == [3]
    assert passed(*from_options(None, "a", None)) == [1, 4]
    assert passed(*from_options("a2", "a", None)) == [4]
    assert passed(*from_time(2000)) == [2, 3, 4]
    assert passed(*from_time(2001), *from_options(None, "a", None)) == [4]
    assert passed(*from_time((1 << 63) - 1)) == []
    assert from_time(None) == ()


@pytest.mark.parametrize(
    "tag", ["p\u00b2", "p99999999999", "p2147483648", "p", "p-1", "p1\n", " p1", "P1", "p\u0663", None]
)
def test_a_tag_that_is_not_a_partition_has_none(tag: str | None) -> None:
    base = _base(seq=[1, 2, 3], tag=[tag, "p2147483647", "p0"])
    assert _projection("partition").rows("t", base).column(0).to_pylist() == [None, 2147483647, 0]


def test_the_arrow_schema_is_the_one_that_spark_makes() -> None:
    text, number = types.StringType(), types.LongType()
    kinds = {
        "topic": text,
        "seq": number,
        "ts": types.TimestampType(),
        "node": text,
        "tag": text,
        "meta": types.MapType(text, text),
        "data": text,
        "kind": text,
        "gap_from": number,
        "gap_to": number,
        "reason": text,
        "partition": types.IntegerType(),
        "key": text,
        "value": text,
        "envelope": text,
        "routing": text,
        "headers": types.ArrayType(
            types.StructType([types.StructField("key", text), types.StructField("value", types.BinaryType())])
        ),
    }
    assert list(kinds) == names_of(with_gaps=True, with_v1=True, with_headers=True)
    fields = [types.StructField(name, kind, nullable=name != "seq") for name, kind in kinds.items()]
    made = arrow_schema((field.name, field.nullable) for field in fields)
    assert made.equals(to_arrow_schema(types.StructType(fields), timezone="UTC"), check_metadata=True)
