"""The columns of a read: which there are, and Arrow batches of exactly those that were asked for, as Spark wants them.

Rows come from files and from the server as *base* batches: the engine's six columns, those that somebody needs. What
Spark gets is made of them here, so every path gives the same. Spark is strict about types: `timestamp[us, UTC]`, plain
strings, the order and the nullability of its schema.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

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
_ALL = RECORD | GAPS | BROKER

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
_MADE_OF |= dict.fromkeys(("envelope", "routing"), "data")
_MESSAGE = ("key", "value", "envelope", "routing")
_META = pa.map_(pa.utf8(), pa.utf8())
_schemas: dict[tuple[str, ...], Any] = {}  # a plain dict: what `functools.cache` makes does not travel by value


def names_of(*, with_gaps: bool, with_v1: bool) -> list[str]:
    """Every column there is."""
    return [*RECORD, *(GAPS if with_gaps else ()), *(BROKER if with_v1 else ())]


def ddl(names: Iterable[str]) -> str:
    """A schema in Spark's words; a plain `timestamp` would be what the session says it is."""
    return ", ".join(f"{name} {_ALL[name]}{'_ltz' if _ALL[name] == 'timestamp' else ''}" for name in names)


def check_schema(fields: Iterable[tuple[str, str]]) -> None:
    """Refuse a schema that is no subset of ours; a field is its name and Spark's name of its type."""
    for name, kind in fields:
        if name not in _ALL:
            raise PipelineError(f"a topic has no column {name!r}: there are {', '.join(_ALL)}")
        if kind != _ALL[name]:
            raise PipelineError(f"column {name!r} is {_ALL[name]}, and the schema says {kind}")


def check_nulls(never: Iterable[str], *, with_gaps: bool) -> None:
    """Refuse a schema that says that a column is never null which may be. Spark would believe it."""
    always = {"topic", "seq"} if with_gaps else {"topic", "seq", "ts", "data"}
    for name in never:
        if name not in always:
            raise PipelineError(f"column {name!r} may be null: leave `not null` out of the schema")


def base_columns(wanted: Iterable[str], also: Iterable[str] = ()) -> list[str]:
    """What has to be read for these columns; `seq` always, since ranges are cut by it."""
    needed = {"seq", *also} | {_MADE_OF[name] for name in wanted if name in _MADE_OF}
    return [name for name in _BASE if name in needed]


def base_schema(names: tuple[str, ...]) -> Any:
    """The Arrow schema of base batches."""
    if names not in _schemas:
        _schemas[names] = pa.schema([pa.field(name, _BASE[name]) for name in names])
    return _schemas[names]


class Projection:
    """Makes Spark's batches of base batches. `schema` is the Arrow schema that Spark expects."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self.names: list[str] = schema.names

    def rows(self, topic: str, base: Any) -> Any:
        """Records."""
        count = base.num_rows
        read = {name: base.column(number) for number, name in enumerate(base.schema.names)}
        message = _message(read["data"]) if any(name in _MESSAGE for name in self.names) else {}
        return self._batch([self._column(name, topic, count, read, message) for name in self.names])

    def _column(self, name: str, topic: str, count: int, read: dict[str, Any], message: dict[str, Any]) -> Any:
        if name in _PLAIN:
            return read[name]
        if name == "topic":
            return _repeated(topic, count)
        if name == "meta":
            return _maps(read["meta"])
        if name == "kind":
            return _repeated("record", count)
        if name == "partition":
            return _partitions(read["tag"])
        if name in message:
            return message[name]
        return pa.nulls(count, self.schema.field(name).type)

    def gaps(self, topic: str, gaps: Sequence[SeqGap]) -> Any:
        """Gaps as rows: `seq` is the last that is gone, what a record has besides is null."""
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
    """JSON objects as maps. Most records have none."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), _META)
    decode = _decoder()
    return pa.array([None if text is None else _strings(decode(text)) for text in texts.to_pylist()], _META)


def _strings(found: dict[str, Any]) -> list[tuple[str, str]]:
    """What the server itself has put there may be no text; it becomes its JSON."""
    return [(key, value if isinstance(value, str) else _text(value)) for key, value in found.items()]


def _text(value: object) -> str:
    """JSON as the server writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _partitions(tags: Any) -> Any:
    """A message's partition is its tag, `p<k>`; null where a record is no message."""
    return pa.array(
        [int(tag[1:]) if tag is not None and _is_partition(tag) else None for tag in tags.to_pylist()], pa.int32()
    )


def _is_partition(tag: str) -> bool:
    return tag[:1] == "p" and tag[1:].isdigit()


def _message(data: Any) -> dict[str, Any]:
    """Key, value, envelope and routing of messages; the last two as JSON text. Null where a record is no message."""
    decode = _decoder()
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
            columns[name].append(None if value is None else _text(value))
    return {name: pa.array(values, pa.utf8()) for name, values in columns.items()}


def _decoder() -> Callable[[str], Any]:
    """The quick JSON reader where there is one; executors may have the standard library only."""
    try:
        from msgspec.json import decode
    except ImportError:
        return json.loads
    return decode


def as_text(rows: "DataFrame") -> "DataFrame":
    """The same rows, with a `meta` that is a map as JSON."""
    from pyspark.sql import functions as f

    if dict(rows.dtypes).get("meta") != "map<string,string>":
        return rows
    return rows.withColumn("meta", f.to_json("meta"))
