"""Selects the rows of a read, by options and by filters that Spark pushes down. Exact: Spark does not check again.

Bounds on `seq` narrow the planned range. Bounds on `ts` become seqs through two requests to the server. The other
conditions become a mask over base columns, computed where the rows are read.
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
    """One condition on a base column. A row must satisfy all conditions."""

    column: str
    operator: str
    value: Any


def supported(column: str, operator: str) -> bool:
    """Whether a filter can be applied completely and exactly."""
    if column in ("seq", "ts"):
        return operator in _COMPARED or operator == "IsNotNull" or (column == "seq" and operator == "In")
    return column in _TEXTS and operator in ("EqualTo", "In", "StringStartsWith", "IsNotNull", "IsNull")


def from_options(tag: str | None, tag_prefix: str | None, node: str | None) -> tuple[Condition, ...]:
    """Return the conditions that the options ask for."""
    given = (("tag", "EqualTo", tag), ("tag", "StringStartsWith", tag_prefix), ("node", "EqualTo", node))
    return tuple(Condition(column, operator, value) for column, operator, value in given if value is not None)


def columns_of(tests: Iterable[Condition]) -> set[str]:
    """Return the base columns that the conditions need."""
    return {test.column for test in tests}


def seq_bounds(tests: Iterable[Condition]) -> tuple[int, int]:
    """Return the lowest and the highest seq that can pass."""
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
    """Return the bounds of `ts` in Unix ms: rows pass from the first on and before the second. None means no bound."""
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
        moment = moment.replace(tzinfo=timezone.utc)  # noqa: UP017  # older Pythons, to which it is pickled, lack UTC
    whole = int(moment.replace(microsecond=0).timestamp())
    return whole * 1_000_000 + moment.microsecond


def apply(tests: Iterable[Condition], base: Any) -> Any:
    """Return the rows of a base batch that satisfy all conditions."""
    mask = None
    for test in tests:
        passed = _passed(test, base.column(base.schema.get_field_index(test.column)))
        mask = passed if mask is None else pc.and_(mask, passed)
    return base if mask is None else base.filter(mask)


def _passed(test: Condition, column: Any) -> Any:
    """Return a mask of the rows that satisfy the condition. Null counts as false, as in a SQL WHERE."""
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
