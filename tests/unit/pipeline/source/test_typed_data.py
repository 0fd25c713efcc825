"""Data parsed into typed columns: what each type takes, and what is corrupt."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.types import StructField, StructType, VariantVal

from driftq.pipeline import PipelineError
from driftq.pipeline.source.data_source import DriftqSource
from driftq.pipeline.source.read_options import parse
from driftq.pipeline.source.typed_data import CORRUPT, TypedData, VariantData, arrow_type

_LONG, _TEXT = types.LongType(), types.StringType()


def _columns(kinds: dict[str, types.DataType], *data: Any) -> dict[str, list[Any]]:
    texts = pa.array([each if isinstance(each, str) else json.dumps(each) for each in data])
    found = TypedData([StructField(name, kind) for name, kind in kinds.items()]).columns(texts)
    return {name: column.to_pylist() for name, column in found.items()}


def test_fields_become_columns_and_bad_rows_keep_their_text() -> None:
    kinds: dict[str, types.DataType] = {"id": _LONG, "total": types.DoubleType()}
    found = _columns(kinds, {"id": 1, "total": 2}, {"id": "x", "total": 2.5}, [1], "null", {"id": None, "more": 1})
    assert found == {
        "id": [1, None, None, None, None],
        "total": [2.0, 2.5, None, None, None],
        CORRUPT: [None, '{"id": "x", "total": 2.5}', "[1]", "null", None],
    }


@pytest.mark.parametrize(
    ("kind", "taken", "value", "refused"),
    [
        (types.ByteType(), 127, 127, 128),
        (types.IntegerType(), -(1 << 31), -(1 << 31), 1 << 31),
        (_LONG, (1 << 63) - 1, (1 << 63) - 1, 1 << 63),
        (_LONG, 5, 5, True),
        (_LONG, 5, 5, 5.5),
        (types.FloatType(), 1.5, 1.5, "1.5"),
        (types.BooleanType(), True, True, 1),
        (_TEXT, {"a": [1, "\u00e9"]}, '{"a":[1,"\u00e9"]}', None),
        (types.DecimalType(5, 2), 123.456, Decimal("123.46"), 1234.5),
        (types.DateType(), "2026-01-31", date(2026, 1, 31), "31.1.2026"),
        (types.TimestampType(), "2026-01-31T10:00:00Z", datetime(2026, 1, 31, 10, tzinfo=UTC), 5),
        (types.ArrayType(_LONG), [1, None], [1, None], ["1"]),
        (types.MapType(_TEXT, _LONG), {"a": 1, "b": None}, [("a", 1), ("b", None)], [1]),
        (StructType([StructField("a", _LONG)]), {"a": 1, "c": 2}, {"a": 1}, {"a": "1"}),
    ],
)
def test_a_type_takes_its_own_values_and_no_others(kind: types.DataType, taken: Any, value: Any, refused: Any) -> None:
    found = _columns({"c": kind}, {"c": taken}, {"c": refused})
    assert found["c"] == [value, None]
    assert [text is None for text in found[CORRUPT]] == [True, refused is None]


def test_a_type_that_json_cannot_have_is_refused() -> None:
    with pytest.raises(PipelineError, match="type binary"):
        arrow_type(types.BinaryType())


def test_a_variant_holds_any_json() -> None:
    values = [{"a": [1, None, "x", 2.5]}, 7, "text", None]
    column = VariantData().columns(pa.array([json.dumps(each) for each in values]))["data"]
    assert [VariantVal(each["value"], each["metadata"]).toPython() for each in column.to_pylist()] == values


def test_the_schema_of_a_read_has_the_columns_and_one_for_corrupt_records() -> None:
    typed = DriftqSource({"topic": "t", "schema": "id BIGINT, total DOUBLE"}).schema()
    assert typed.endswith("meta map<string,string>, id BIGINT, total DOUBLE, _corrupt_record string")
    assert DriftqSource({"topic": "t", "schema": "a INT, _corrupt_record STRING"}).schema().count("_corrupt") == 1
    assert DriftqSource({"topic": "t", "dataType": "variant"}).schema().endswith("data variant")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dataType": "json"}, "dataType is 'json' and must be string or variant"),
        ({"dataType": "variant", "schema": "a INT"}, "not both"),
    ],
)
def test_types_that_mean_nothing_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        parse({"topic": "t"} | options)


def test_a_column_that_a_record_has_too_is_refused() -> None:
    schema = StructType([StructField("seq", _LONG), StructField("Seq", _LONG)])
    with pytest.raises(PipelineError, match="column 'seq', which a record has too"):
        DriftqSource({"topic": "t", "schema": "Seq BIGINT"}).reader(schema)
