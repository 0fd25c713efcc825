"""Typed columns from `data`: its JSON parsed into the columns of a schema, or as one VARIANT value.

As Spark's `from_json` in its permissive mode: a field that is absent is null; data that is not an object, or has a
field of another type, gives a row whose text is in `_corrupt_record`, with the fields that could be read.
"""

import math
from collections.abc import Callable, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal, DecimalException
from typing import Any

import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.types import VariantVal

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.source.read_columns import json_decoder, json_text

CORRUPT = "_corrupt_record"
_ENDS = {spark.ByteType: 1 << 7, spark.ShortType: 1 << 15, spark.IntegerType: 1 << 31, spark.LongType: 1 << 63}
_ARROW = {
    spark.StringType: pa.utf8(),
    spark.ByteType: pa.int8(),
    spark.ShortType: pa.int16(),
    spark.IntegerType: pa.int32(),
    spark.LongType: pa.int64(),
    spark.FloatType: pa.float32(),
    spark.DoubleType: pa.float64(),
    spark.BooleanType: pa.bool_(),
    spark.DateType: pa.date32(),
    spark.TimestampType: pa.timestamp("us", "UTC"),
}
VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]
)
"""The type that Spark expects for VARIANT."""


def arrow_type(kind: spark.DataType) -> Any:
    """Return Arrow's type for a type of Spark. Raises PipelineError if JSON cannot have it."""
    if type(kind) in _ARROW:
        return _ARROW[type(kind)]
    if isinstance(kind, spark.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, spark.ArrayType):
        return pa.list_(pa.field("element", arrow_type(kind.elementType), nullable=kind.containsNull))
    if isinstance(kind, spark.MapType) and isinstance(kind.keyType, spark.StringType):
        return pa.map_(
            pa.field("key", pa.utf8(), nullable=False),
            pa.field("value", arrow_type(kind.valueType), nullable=kind.valueContainsNull),
        )
    if isinstance(kind, spark.StructType):
        return pa.struct([pa.field(each.name, arrow_type(each.dataType), nullable=each.nullable) for each in kind])
    if isinstance(kind, spark.VariantType):
        return VARIANT
    raise PipelineError(f"option schema has type {kind.simpleString()}, which data in JSON cannot be parsed into")


class VariantData:
    """Makes `data` a VARIANT; null if VARIANT cannot hold it."""

    def columns(self, texts: Any) -> dict[str, Any]:
        """Return the column `data` as VARIANT values."""
        return {"data": pa.array([None if text is None else _variant(text) for text in texts.to_pylist()], VARIANT)}


def _variant(text: str) -> dict[str, bytes] | None:
    try:
        found = VariantVal.parseJson(text)
    except Exception:  # noqa: BLE001  # of many kinds; the record itself is sound JSON
        return None
    return {"value": bytes(found.value), "metadata": bytes(found.metadata)}


class TypedData:
    """Parses `data` into the columns of a schema. Can be pickled."""

    def __init__(self, fields: Sequence[spark.StructField]) -> None:
        self._fields = [(field.name, field.dataType) for field in fields if field.name != CORRUPT]

    def columns(self, texts: Any) -> dict[str, Any]:
        """Return the column of each field, and the texts that could not be read completely."""
        readers = [(name, _reader(kind)) for name, kind in self._fields]
        values: list[list[Any]] = [[] for _ in readers]
        corrupt: list[str | None] = []
        decode = json_decoder()
        for text in texts.to_pylist():
            bad = False
            row = None if text is None else decode(text)
            if not isinstance(row, dict):
                bad, row = text is not None, {}
            for (name, read), column in zip(readers, values, strict=True):
                value = row.get(name)
                if value is not None:
                    try:
                        value = read(value)
                    except (ValueError, TypeError, OverflowError, DecimalException):
                        value, bad = None, True
                column.append(value)
            corrupt.append(text if bad else None)
        found = {
            name: pa.array(column, arrow_type(kind)) for (name, kind), column in zip(self._fields, values, strict=True)
        }
        return found | {CORRUPT: pa.array(corrupt, pa.utf8())}


def parsed_ddl(schema: str) -> str:
    """Return the columns of the option `schema` with the one for corrupt records, as Spark DDL."""
    return schema if CORRUPT in schema.lower() else f"{schema.strip().rstrip(',')}, {CORRUPT} string"


def _reader(kind: spark.DataType) -> Callable[[Any], Any]:
    """Return the function that reads a JSON value that is not null. It raises ValueError for one of another type."""
    simple = _SIMPLE.get(type(kind))
    if simple is not None:
        return simple
    if isinstance(kind, spark.IntegralType):
        end = _ENDS[type(kind)]
        return lambda value: _checked(value, type(value) is int and -end <= value < end)
    if isinstance(kind, spark.DecimalType):
        return lambda value: _decimal(value, kind)
    if isinstance(kind, spark.ArrayType):
        element = _reader(kind.elementType)
        return lambda value: [None if each is None else element(each) for each in _checked(value, type(value) is list)]
    if isinstance(kind, spark.MapType):
        content = _reader(kind.valueType)
        return lambda value: [(key, None if each is None else content(each)) for key, each in _entries(value).items()]
    assert isinstance(kind, spark.StructType), "arrow_type has refused other types"
    readers = {field.name: _reader(field.dataType) for field in kind}
    return lambda value: {
        name: None if (each := _entries(value).get(name)) is None else read(each) for name, read in readers.items()
    }


def _checked(value: Any, right: bool) -> Any:
    if not right:
        raise ValueError
    return value


def _entries(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = _checked(value, isinstance(value, dict))
    return found


def _string(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)


def _float(value: Any) -> float:
    return float(_checked(value, type(value) in (int, float) and math.isfinite(value)))


def _decimal(value: Any, kind: spark.DecimalType) -> Decimal:
    found = round(Decimal(str(_checked(value, type(value) in (int, float)))), kind.scale)
    return Decimal(_checked(found, len(found.as_tuple().digits) <= kind.precision))


def _moment(value: Any) -> datetime:
    moment = datetime.fromisoformat(_checked(value, isinstance(value, str)).replace("Z", "+00:00"))
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)  # noqa: UP017  # older Pythons lack UTC


_SIMPLE: dict[type[spark.DataType], Callable[[Any], Any]] = {
    spark.StringType: _string,
    spark.FloatType: _float,
    spark.DoubleType: _float,
    spark.BooleanType: lambda value: _checked(value, isinstance(value, bool)),
    spark.DateType: lambda value: date.fromisoformat(value),
    spark.TimestampType: _moment,
    spark.VariantType: lambda value: _variant(json_text(value)),
}
