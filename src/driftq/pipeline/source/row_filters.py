"""Which rows of a read are wanted: by options and by the filters that Spark hands down. Exact: nobody checks again.

Bounds of `seq` become the range that is planned, bounds of `ts` become seqs by two questions to the server, and what is
left is a mask over base columns, computed where the rows are read.
"""

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

_TEXTS = ("tag", "node")
_COMPARED = {
    "EqualTo": pc.equal,
    "LessThan": pc.less,
    "LessThanOrEqual": pc.less_equal,
    "GreaterThan": pc.greater,
    "GreaterThanOrEqual": pc.greater_equal,
}
_SEQ_MAX = (1 << 63) - 1


class Condition(NamedTuple):
    """One condition on a base column; all of them must hold."""

    column: str
    operator: str
    value: Any


def supported(column: str, operator: str) -> bool:
    """Can a filter be taken over whole?"""
    if column in ("seq", "ts"):
        return operator in _COMPARED or operator == "IsNotNull" or (column == "seq" and operator == "In")
    return column in _TEXTS and operator in ("EqualTo", "In", "StringStartsWith", "IsNotNull", "IsNull")


def from_options(tag: str | None, tag_prefix: str | None, node: str | None) -> tuple[Condition, ...]:
    """The tests that options ask for."""
    given = (("tag", "EqualTo", tag), ("tag", "StringStartsWith", tag_prefix), ("node", "EqualTo", node))
    return tuple(Condition(column, operator, value) for column, operator, value in given if value is not None)


def columns_of(tests: Iterable[Condition]) -> set[str]:
    """Base columns that have to be read for them."""
    return {test.column for test in tests}


def seq_bounds(tests: Iterable[Condition]) -> tuple[int, int]:
    """The least and the greatest seq that can pass."""
    low, high = 0, _SEQ_MAX
    for column, operator, value in tests:
        if column != "seq":
            continue
        if operator in ("EqualTo", "GreaterThanOrEqual"):
            low = max(low, value)
        if operator in ("EqualTo", "LessThanOrEqual"):
            high = min(high, value)
        if operator == "GreaterThan":
            low = max(low, value + 1)
        if operator == "LessThan":
            high = min(high, value - 1)
        if operator == "In":
            known = [each for each in value if each is not None]
            low, high = max(low, min(known, default=_SEQ_MAX)), min(high, max(known, default=0))
    return low, high


def ts_bounds(tests: Iterable[Condition]) -> tuple[int | None, int | None]:
    """From which millisecond on, and before which, rows can pass; None where nothing says so."""
    low: int | None = None
    high: int | None = None
    for column, operator, value in tests:
        if column != "ts" or not isinstance(value, datetime):
            continue
        floor = _micros(value) // 1000
        if operator in ("EqualTo", "GreaterThanOrEqual", "GreaterThan"):
            low = floor if low is None else max(low, floor)
        if operator in ("EqualTo", "LessThanOrEqual", "LessThan"):
            high = floor + 1 if high is None else min(high, floor + 1)
    return low, high


def _micros(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)  # noqa: UP017  # travels by value to older Pythons too
    whole = int(moment.replace(microsecond=0).timestamp())
    return whole * 1_000_000 + moment.microsecond


def apply(tests: Iterable[Condition], base: Any) -> Any:
    """The rows of a base batch that pass."""
    mask = None
    for test in tests:
        passed = _passed(test, base.column(base.schema.get_field_index(test.column)))
        mask = passed if mask is None else pc.and_(mask, passed)
    return base if mask is None else base.filter(mask)


def _passed(test: Condition, column: Any) -> Any:
    """True where it holds; null counts as false, as in a WHERE."""
    if test.operator == "IsNotNull":
        return column.is_valid()
    if test.operator == "IsNull":
        return column.is_null()
    if test.operator == "In":
        found = pc.is_in(column, pa.array([each for each in test.value if each is not None], column.type))
        return pc.and_(found, column.is_valid())
    if test.operator == "StringStartsWith":
        return pc.starts_with(column, test.value).fill_null(False)
    value = test.value
    if test.column == "ts":
        column, value = column.cast(pa.timestamp("us", "UTC")), pa.scalar(_micros(value), pa.timestamp("us", "UTC"))
    return _COMPARED[test.operator](column, value).fill_null(False)
