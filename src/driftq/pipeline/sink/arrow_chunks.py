"""Turns rows of a DataFrame into chunks for topics: checks the columns, and cuts Arrow batches to a size for one call.

A record is `data` (JSON text) and, if there are such columns, `tag`, `node` and `meta`. Rows that were read from a
topic can be written unchanged: they have a `seq`, and the other columns of a read next to it are left out. Any other
column is refused, because dropping it silently would lose data. Rows are processed by column; only a `meta` that is a
map is converted row by row.

Invariant: the chunks of a topic, in order, have all its rows in their original order.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from driftq.pipeline.errors import PipelineError

CHUNK_ROWS = 10_000
"""Maximum number of records that the server takes in one call by default (http-v0 §3)."""
CHUNK_BYTES = 8 << 20
_PLACE = {"topic": "string", "seq": "bigint", "ts": "timestamp"}
_GAPS = {"kind": "string", "gap_from": "bigint", "gap_to": "bigint", "reason": "string"}
_BROKER = {"partition": "int", "key": "string", "value": "string", "envelope": "string", "routing": "string"}
_TOMBSTONE = "tombstone"
_NAMED = ("topic", "gap_from", "gap_to", "reason")
_TEXTS = ("data", "tag", "node")
_META = ("string", "map<string,string>")


class Chunk(NamedTuple):
    """Rows for one call: text columns `data` and, if given, `tag`, `node` and `meta`."""

    topic: str
    rows: pa.Table


def check_columns(columns: Mapping[str, str], *, routed: bool) -> None:
    """Refuse a DataFrame whose rows are not records. `columns` maps names to Spark's type names. Raises PipelineError.

    With `routed`, option `topic` is not set, so each row must name its own topic.
    """
    if "data" not in columns:
        raise PipelineError(
            "the DataFrame has no column 'data': give the JSON text of each record, e.g. "
            "df.select(to_json(struct('*')).alias('data'))"
        )
    if routed and columns.get("topic") != "string":
        raise PipelineError("set option 'topic', or add a string column 'topic' that names the topic of each row")
    for name, kind in columns.items():
        if name in _TEXTS and kind != "string":
            raise PipelineError(f"column {name!r} is {kind} and must be string; convert it with to_json(…)")
        if name == "meta" and kind not in _META:
            raise PipelineError(f"column 'meta' is {kind} and must be map<string,string> or JSON text")
    left = _of_a_read(columns)
    for name in columns:
        if name not in left and name not in (*_TEXTS, "meta") and not (routed and name == "topic"):
            raise PipelineError(
                f"column {name!r} is not part of a record (data, tag, node, meta): drop it, or put it into data"
            )


def _of_a_read(columns: Mapping[str, str]) -> set[str]:
    """Return the columns that only a read from a topic has: its place, all columns of gaps, all columns of brokers."""
    if columns.get("seq") != "bigint":
        return set()
    found = {name for name, kind in _PLACE.items() if columns.get(name) == kind}
    return found.union(*(group for group in (_GAPS, _BROKER) if group.items() <= columns.items()))


def chunks(batches: Iterator[pa.RecordBatch], topic: str | None) -> Iterator[Chunk]:
    """Yield the rows of a task in chunks. Without `topic`, each row goes to the topic that it names."""
    waiting: dict[str, list[pa.Table]] = {}
    for batch in batches:
        _refuse_tombstones(batch)
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
    """Cut rows into at least one piece of at most `CHUNK_ROWS` rows and about `CHUNK_BYTES` bytes.

    The cut assumes rows of equal size. The last piece has the remaining rows.
    """
    pieces = []
    while len(rows) > CHUNK_ROWS or (rows.nbytes > CHUNK_BYTES and len(rows) > 1):
        size = min(CHUNK_ROWS, max(1, len(rows) * CHUNK_BYTES // max(1, rows.nbytes)), len(rows) - 1)
        pieces.append(rows.slice(0, size))
        rows = rows.slice(size)
    return [*pieces, rows]


def body_of(rows: pa.Table) -> bytes:
    """Return the Arrow stream of a call. Columns that are entirely null are left out, except `data`."""
    known = rows.select([name for name in rows.column_names if rows[name].null_count < len(rows) or name == "data"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, known.schema) as writer:
        writer.write_table(known)
    return bytes(sink.getvalue())


def without_null(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows that have data, and the rows whose data is null."""
    if not rows["data"].null_count:
        return rows, rows.slice(0, 0)
    missing = pc.is_null(rows["data"])
    return rows.filter(pc.invert(missing)), rows.filter(missing)


def _refuse_tombstones(batch: pa.RecordBatch) -> None:
    """Refuse rows that stand for gaps, as a read with `onDataLoss=rows` has them. Raises PipelineError."""
    if not _GAPS.keys() <= {*batch.schema.names}:
        return
    gaps = batch.filter(pc.equal(batch["kind"], _TOMBSTONE))
    if len(gaps):
        topic, first, last, reason = (gaps[name][0].as_py() if name in gaps.schema.names else None for name in _NAMED)
        of = "" if topic is None else f" of topic {topic!r}"
        raise PipelineError(
            f"{len(gaps)} rows are tombstones, not records; the first one is the gap {first} to {last}{of} ({reason}): "
            "leave them out with where(\"kind = 'record'\"), or write them elsewhere"
        )


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
    """Return the columns of a record as text columns."""
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
