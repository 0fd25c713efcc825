"""The columns of a read, and Arrow batches with exactly the columns that Spark asked for.

Files and the server deliver rows as *base* batches: those of the engine's six columns that are needed. This module
makes Spark's batches of them, so every way to read gives the same rows. Spark is strict about types: it wants
`timestamp[us, UTC]`, plain strings, and the order and nullability of its schema.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.source.split_plan import SeqGap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RECORD = {
    "topic": "string",
    "seq": "bigint",
    "ts": "timestamp",
    "node": "string",
    "tag": "string",
    "meta": "map<string,string>",
    "data": "string",
}
GAPS = {"kind": "string", "gap_from": "bigint", "gap_to": "bigint", "reason": "string"}
BROKER = {"partition": "int", "key": "string", "value": "string", "envelope": "string", "routing": "string"}
HEADERS = {"headers": "array<struct<key:string,value:binary>>"}
ALL = RECORD | GAPS | BROKER | HEADERS
"""Spark's name of the type of every column that a read can have."""

TIME = pa.timestamp("us", "UTC")
_BASE = {
    "seq": pa.int64(),
    "ts": TIME,
    "node": pa.utf8(),
    "tag": pa.utf8(),
    "meta": pa.utf8(),
    "data": pa.utf8(),
}
_MADE_OF = {name: name for name in _BASE} | {"partition": "tag"} | dict.fromkeys(("key", "value"), "data")
_MADE_OF |= dict.fromkeys(("envelope", "routing"), "data") | {"headers": "meta"}
PARTITION_TAG = re.compile("p([0-9]{1,10})")
_INT_MAX = (1 << 31) - 1
_MESSAGE = ("key", "value", "envelope", "routing")
_META = pa.map_(pa.utf8(), pa.utf8())
_HEADER = pa.struct([pa.field("key", pa.utf8()), pa.field("value", pa.binary())])
_ARROW = {
    "string": pa.utf8(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "timestamp": TIME,
    "map<string,string>": _META,
    HEADERS["headers"]: pa.list_(pa.field("element", _HEADER)),
}
"""Arrow's type by Spark's name of a type."""
_schemas: dict[tuple[str, ...], Any] = {}  # a plain dict, because a `functools.cache` cannot be pickled by value


def names_of(*, with_gaps: bool, with_v1: bool, with_headers: bool = False) -> list[str]:
    """Return the names of all columns that a read with these options has."""
    more = ((with_gaps, GAPS), (with_v1, BROKER), (with_headers, HEADERS))
    return [*RECORD, *(name for wanted, columns in more if wanted for name in columns)]


def ddl(names: Iterable[str]) -> str:
    """Return a schema as Spark DDL. It uses `timestamp_ltz`, because the session defines what `timestamp` means."""
    return ", ".join(f"{name} {ALL[name]}{'_ltz' if ALL[name] == 'timestamp' else ''}" for name in names)


def check_schema(fields: Iterable[tuple[str, str]]) -> None:
    """Raise PipelineError if a schema is not a subset of ours. A field is its name and Spark's name of its type."""
    for name, kind in fields:
        if name not in ALL:
            raise PipelineError(f"a topic has no column {name!r}: the columns are {', '.join(ALL)}")
        if kind != ALL[name]:
            raise PipelineError(f"column {name!r} is {ALL[name]}, but the schema has {kind}")


def check_nulls(never: Iterable[str], *, with_gaps: bool) -> None:
    """Raise PipelineError if a schema declares a nullable column as `not null`, which Spark would believe."""
    always = {"topic", "seq"} if with_gaps else {"topic", "seq", "ts", "data"}
    for name in never:
        if name not in always:
            raise PipelineError(f"column {name!r} may be null: leave `not null` out of the schema")


def arrow_schema(fields: Iterable[tuple[str, bool]], parsed: Mapping[str, Any] | None = None) -> pa.Schema:
    """Return the Arrow schema that Spark expects for these columns. A field is its name and whether it may be null.

    `parsed` has the types of columns that are made of `data`.
    """
    types = {name: _ARROW[kind] for name, kind in ALL.items()} | dict(parsed or {})
    return pa.schema([pa.field(name, types[name], nullable=nullable) for name, nullable in fields])


def base_columns(wanted: Iterable[str], also: Iterable[str] = ()) -> list[str]:
    """Return the base columns to read for these columns. `seq` is always included, because ranges are cut by it."""
    needed = {"seq", *also} | {_MADE_OF[name] for name in wanted if name in _MADE_OF}
    return [name for name in _BASE if name in needed]


def base_schema(names: tuple[str, ...]) -> Any:
    """Return the Arrow schema of base batches with these columns."""
    if names not in _schemas:
        _schemas[names] = pa.schema([pa.field(name, _BASE[name]) for name in names])
    return _schemas[names]


class DataColumns(Protocol):
    """Makes columns of the texts of `data`."""

    def columns(self, texts: Any) -> dict[str, Any]:
        """Return the columns by name."""
        ...


class Projection:
    """Converts base batches to Spark's batches. `schema` is the Arrow schema that Spark expects.

    `parsed` makes the columns that are not those of a record, and may make `data` itself.
    """

    def __init__(self, schema: Any, parsed: DataColumns | None = None) -> None:
        self.schema = schema
        self.names: list[str] = schema.names
        self._parsed = parsed

    def base_columns(self, also: Iterable[str] = ()) -> list[str]:
        """Return the base columns to read for the columns of this projection."""
        return base_columns(self.names, {*also, "data"} if self._parsed is not None else also)

    def rows(self, topic: str, base: Any) -> Any:
        """Return a batch of Spark for the records of a base batch."""
        count = base.num_rows
        read = {name: base.column(number) for number, name in enumerate(base.schema.names)}
        message = _message(read["data"]) if any(name in _MESSAGE for name in self.names) else {}
        if self._parsed is not None:
            message |= self._parsed.columns(read["data"])
        return self._batch([self._column(name, topic, count, read, message) for name in self.names])

    def _column(self, name: str, topic: str, count: int, read: dict[str, Any], message: dict[str, Any]) -> Any:
        if name in message:
            return message[name]
        if name in _PLAIN:
            return read[name]
        if name == "topic":
            return _repeated(topic, count)
        if name == "meta":
            return _maps(read["meta"])
        if name == "headers":
            return _headers(read["meta"])
        if name == "kind":
            return _repeated("record", count)
        if name == "partition":
            return _partitions(read["tag"])
        return pa.nulls(count, self.schema.field(name).type)

    def gaps(self, topic: str, gaps: Sequence[SeqGap]) -> Any:
        """Return gaps as rows: `seq` is the last lost seq; the other columns of a record are null."""
        known: dict[str, list[Any]] = {
            "topic": [topic] * len(gaps),
            "seq": [gap.last for gap in gaps],
            "kind": ["tombstone"] * len(gaps),
            "gap_from": [gap.first for gap in gaps],
            "gap_to": [gap.last for gap in gaps],
            "reason": [gap.told for gap in gaps],
        }
        return self._batch(
            [pa.array(known.get(name, [None] * len(gaps)), self.schema.field(name).type) for name in self.names]
        )

    def _batch(self, columns: list[Any]) -> Any:
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


_PLAIN = frozenset(("seq", "ts", "node", "tag", "data"))


def _repeated(text: str, count: int) -> Any:
    return pa.repeat(pa.scalar(text, pa.utf8()), count)


def _maps(texts: Any) -> Any:
    """Return JSON objects as maps. Fast if all are null, as in most topics."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), _META)
    decode = json_decoder()
    return pa.array([None if text is None else _strings(decode(text)) for text in texts.to_pylist()], _META)


def _headers(texts: Any) -> Any:
    """Return JSON objects as Kafka's headers: the text of each value, as bytes."""
    decode = json_decoder()
    rows = (None if text is None else _strings(decode(text)) for text in texts.to_pylist())
    return pa.array(
        [None if row is None else [{"key": key, "value": value.encode()} for key, value in row] for row in rows],
        _ARROW[HEADERS["headers"]],
    )


def _strings(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the entries as strings. Values that the server has added may be other types; they become JSON text."""
    return [(key, value if isinstance(value, str) else json_text(value)) for key, value in found.items()]


def json_text(value: object) -> str:
    """Return JSON in the form that the server writes."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _partitions(tags: Any) -> Any:
    """Return the partition of each message, from its tag `p<k>`; null if a record is not a message."""
    return pa.array([None if tag is None else _partition(tag) for tag in tags.to_pylist()], pa.int32())


def _partition(tag: str) -> int | None:
    """Return the number in a tag `p<k>`; None for any other tag, and for a number that is too large for the column."""
    found = PARTITION_TAG.fullmatch(tag)
    number = int(found[1]) if found else _INT_MAX + 1
    return number if number <= _INT_MAX else None


def _message(data: Any) -> dict[str, Any]:
    """Return key, value, envelope and routing of messages, the last two as JSON. Null if a record is not a message."""
    decode = json_decoder()
    columns: dict[str, list[str | None]] = {name: [] for name in _MESSAGE}
    for text in data.to_pylist():
        found = decode(text)
        if not isinstance(found, dict):
            found = {}
        for name in ("key", "value"):
            value = found.get(name)
            columns[name].append(value if isinstance(value, str) else None)
        for name in ("envelope", "routing"):
            value = found.get(name)
            columns[name].append(None if value is None else json_text(value))
    return {name: pa.array(values, pa.utf8()) for name, values in columns.items()}


def json_decoder() -> Callable[[str], Any]:
    """Return msgspec's fast JSON decoder if it is installed; executors may have only the standard library."""
    try:
        from msgspec.json import decode
    except ImportError:
        return json.loads
    return decode


def as_text(rows: "DataFrame") -> "DataFrame":
    """Return the rows with `meta` as JSON text instead of a map."""
    from pyspark.sql import functions as f

    if dict(rows.dtypes).get("meta") != "map<string,string>":
        return rows
    return rows.withColumn("meta", f.to_json("meta"))
