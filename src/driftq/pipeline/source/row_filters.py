"""Selects the rows of a read by the options `tag`, `tagPrefix`, `node` and `startingTimestamp`.

The conditions become a mask over base columns, computed where the rows are read. They are options and not filters that
Spark pushes down: Spark applies pushed filters of one query to other queries of the same DataFrame, too (decision 13).
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

_SECONDS_MAX = 253_402_300_799
"""The last second of the year 9999, the last that `ts` can hold in Spark."""


class Condition(NamedTuple):
    """One condition on a base column. A row must satisfy all conditions; null satisfies none."""

    column: str
    operator: str
    """`equals`, `starts_with`, or `from`: the value is then the earliest time in Unix ms."""
    value: Any


def from_options(tag: str | None, tag_prefix: str | None, node: str | None) -> tuple[Condition, ...]:
    """Return the conditions that the options ask for."""
    given = (("tag", "equals", tag), ("tag", "starts_with", tag_prefix), ("node", "equals", node))
    return tuple(Condition(column, operator, value) for column, operator, value in given if value is not None)


def from_time(ts: int | None) -> tuple[Condition, ...]:
    """Return the condition for records with this time (Unix ms) or a later one; none without a time."""
    return () if ts is None else (Condition("ts", "from", min(ts, _SECONDS_MAX * 1000)),)


def columns_of(tests: Iterable[Condition]) -> set[str]:
    """Return the base columns that the conditions need."""
    return {test.column for test in tests}


def apply(tests: Iterable[Condition], base: Any) -> Any:
    """Return the rows of a base batch that satisfy all conditions."""
    mask = None
    for test in tests:
        passed = _passed(test, base.column(base.schema.get_field_index(test.column)))
        mask = passed if mask is None else pc.and_(mask, passed)
    return base if mask is None else base.filter(mask)


def _passed(test: Condition, column: Any) -> Any:
    """Return a mask of the rows that satisfy the condition."""
    if test.operator == "from":
        column = column.cast(pa.timestamp("us", "UTC"))
        earliest = pa.scalar(test.value * 1000, pa.timestamp("us", "UTC"))
        return pc.greater_equal(column, earliest).fill_null(False)
    found = pc.equal(column, test.value) if test.operator == "equals" else pc.starts_with(column, test.value)
    return found.fill_null(False)
