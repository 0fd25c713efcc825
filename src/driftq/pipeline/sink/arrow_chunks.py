"""Rows of a DataFrame on their way into topics: which columns count, and Arrow batches as chunks that can be sent.

A record is `data` (JSON text) and, where there are such columns, `tag`, `node` and `meta`. The columns that our source
gives besides are left behind, so that what was read can be written as it is; a column that is neither is refused,
for silence about it would lose it. Rows go on as columns: only `meta` as a map is looked at row by row.

Invariant: the chunks of a topic, one behind the other, are its rows in the order in which they came.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from driftq.pipeline.errors import PipelineError

CHUNK_ROWS = 10_000
"""What the server takes in one call by default (http-v0 §3)."""
CHUNK_BYTES = 8 << 20
LEFT_BEHIND = frozenset(
    ("topic", "seq", "ts", "kind", "gap_from", "gap_to", "reason", "partition", "key", "value", "envelope", "routing")
)
_TEXTS = ("data", "tag", "node")
_META = ("string", "map<string,string>")


class Chunk(NamedTuple):
    """Rows for one call: columns `data`, `tag`, `node`, `meta`, all of them texts."""

    topic: str
    rows: pa.Table


def check_columns(columns: Mapping[str, str], *, routed: bool) -> None:
    """Refuse a DataFrame that is no records; `columns` is name to Spark's name of the type. Raises PipelineError.

    `routed`: no topic is set, so each row has to name its own.
    """
    if "data" not in columns:
        raise PipelineError(
            "the DataFrame has no column 'data': give the JSON text of each record, e.g. "
            "df.select(to_json(struct('*')).alias('data'))"
        )
    if routed and columns.get("topic") != "string":
        raise PipelineError("set option 'topic', or give the DataFrame a string column 'topic' with one per row")
    for name, kind in columns.items():
        if name in _TEXTS and kind != "string":
            raise PipelineError(f"column {name!r} is {kind} and must be string; to_json(…) makes text of it")
        if name == "meta" and kind not in _META:
            raise PipelineError(f"column 'meta' is {kind} and must be map<string,string> or JSON text")
        if name not in LEFT_BEHIND and name not in (*_TEXTS, "meta"):
            raise PipelineError(
                f"column {name!r} is no part of a record (data, tag, node, meta): drop it, or pack it into data"
            )


def chunks(batches: Iterator[pa.RecordBatch], topic: str | None) -> Iterator[Chunk]:
    """The rows of a task in pieces that can be sent; without a topic, each row goes to the one it names."""
    waiting: dict[str, list[pa.Table]] = {}
    for batch in batches:
        for name, rows in _by_topic(pa.Table.from_batches([batch]), topic):
            kept = waiting.setdefault(name, [])
            kept.append(_texts(rows))
            if sum(map(len, kept)) >= CHUNK_ROWS or sum(table.nbytes for table in kept) >= CHUNK_BYTES:
                *full, rest = cut(_joined(kept))
                if len(rest) == CHUNK_ROWS:
                    full, rest = [*full, rest], rest.slice(0, 0)
                yield from (Chunk(name, piece) for piece in full)
                waiting[name] = [rest] if len(rest) else []
    for name, kept in waiting.items():
        if kept:
            yield from (Chunk(name, piece) for piece in cut(_joined(kept)))


def cut(rows: pa.Table) -> list[pa.Table]:
    """Pieces within the limits of a call, as few as there can be; at least one, the last with all that is left."""
    pieces = []
    while len(rows) > CHUNK_ROWS or (rows.nbytes > CHUNK_BYTES and len(rows) > 1):
        size = min(CHUNK_ROWS, max(1, len(rows) * CHUNK_BYTES // max(1, rows.nbytes)), len(rows) - 1)
        pieces.append(rows.slice(0, size))
        rows = rows.slice(size)
    return [*pieces, rows]


def body_of(rows: pa.Table) -> bytes:
    """The Arrow stream of a call. A column without any value is left out."""
    known = rows.select([name for name in rows.column_names if rows[name].null_count < len(rows) or name == "data"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, known.schema) as writer:
        writer.write_table(known)
    return bytes(sink.getvalue())


def without_null(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The rows that have data, and those that have none."""
    if not rows["data"].null_count:
        return rows, rows.slice(0, 0)
    missing = pc.is_null(rows["data"])
    return rows.filter(pc.invert(missing)), rows.filter(missing)


def _by_topic(rows: pa.Table, topic: str | None) -> list[tuple[str, pa.Table]]:
    if topic is not None:
        return [(topic, rows)]
    names = rows["topic"].unique().to_pylist()
    if None in names:
        raise PipelineError("a row has no value in column 'topic', and option 'topic' is not set")
    if len(names) == 1:
        return [(names[0], rows)]
    return [(name, rows.filter(pc.equal(rows["topic"], name))) for name in names]


def _texts(rows: pa.Table) -> pa.Table:
    """The columns of a record, as texts."""
    found: dict[str, Any] = {name: rows[name].cast(pa.string()) for name in _TEXTS if name in rows.column_names}
    if "meta" in rows.column_names:
        found["meta"] = _meta(rows["meta"])
    return pa.table(found)


def _meta(column: Any) -> Any:
    if column.null_count == len(column):
        return pa.nulls(len(column), pa.string())
    if not pa.types.is_map(column.type):
        return column.cast(pa.string())
    return pa.array(
        [None if pairs is None else json.dumps(dict(pairs), ensure_ascii=False) for pairs in column.to_pylist()]
    )


def _joined(tables: list[pa.Table]) -> pa.Table:
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="default").combine_chunks()
