"""Checksums of rows that do not depend on their order, so they survive any compaction of a table.

The sum of some rows is the sum of the hashes of each row, modulo 2^63. A hash covers seq, time, node, tag, meta and
data, so it differs if two rows have swapped their seqs. Tasks compute sums on executors, which may not have DriftQ's
dependencies: this module uses only the standard library and pyarrow.
"""

import json
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

MODULUS = 1 << 63
_TIME = pa.timestamp("us", tz="UTC")
SUMMED = ("seq", "ts", "node", "tag", "meta", "data")
"""The columns that a hash covers."""


class RowSum(NamedTuple):
    """Number and checksum of some rows."""

    rows: int = 0
    total: int = 0

    def plus(self, other: "RowSum") -> "RowSum":
        """Return the sum of both sets of rows together."""
        return RowSum(self.rows + other.rows, (self.total + other.total) % MODULUS)

    def minus(self, other: "RowSum") -> "RowSum":
        """Return the sum of the rows that remain without the other ones."""
        return RowSum(self.rows - other.rows, (self.total - other.total) % MODULUS)


def hashes(rows: pa.Table | pa.RecordBatch) -> list[int]:
    """Return the hash of each row of a table of records. `meta` is a map, or JSON text as the server sends it."""
    times = rows["ts"].cast(_TIME).cast(pa.int64()).to_pylist()
    texts = (rows["node"].to_pylist(), rows["tag"].to_pylist(), _metas(rows["meta"]), rows["data"].to_pylist())
    return [_hash(*row) for row in zip(rows["seq"].to_pylist(), times, *texts, strict=True)]


def sum_of(found: Iterable[int]) -> RowSum:
    """Return number and checksum of rows with these hashes."""
    values = list(found)
    return RowSum(len(values), sum(values) % MODULUS)


def _hash(seq: int, ts_us: int, node: str | None, tag: str | None, meta: str | None, data: str | None) -> int:
    whole = f"{seq},{ts_us}{_part(node)}{_part(tag)}{_part(meta)}{_part(data)}"
    return int.from_bytes(blake2b(whole.encode("utf-8", "surrogatepass"), digest_size=8).digest()) % MODULUS


def _part(text: str | None) -> str:
    return ",-" if text is None else f",{len(text)}:{text}"


def _metas(column: Any) -> list[str | None]:
    """Return each `meta` as one text, the same for a map and for JSON text, whatever the order of its keys."""
    if column.null_count == len(column):
        return [None] * len(column)
    if not pa.types.is_map(column.type):
        return [None if text is None else _pairs(json.loads(text).items()) for text in column.to_pylist()]
    found: list[str | None] = []
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        # Much faster than `to_pylist`, which makes an object of every pair. Keys and items of a slice are those of all.
        ends, keys, items = chunk.offsets.to_pylist(), chunk.keys.to_pylist(), chunk.items.to_pylist()
        pairs = list(zip(keys, items, strict=True))
        rows = zip(chunk.is_null().to_pylist(), ends, ends[1:], strict=False)
        found += [None if empty else _pairs(pairs[at:end]) for empty, at, end in rows]
    return found


def _pairs(pairs: Iterable[tuple[str, str | None]]) -> str:
    return "".join(f"{_part(key)}{_part(value)}" for key, value in sorted(pairs))


def by_topic(rows: pa.Table | pa.RecordBatch) -> Iterator[tuple[str, int, Any]]:
    """Yield topic, epoch and rows for each incarnation of a topic in a table of records."""
    for topic in pc.unique(rows["topic"]).to_pylist():
        named = rows.filter(pc.equal(rows["topic"], topic))
        for epoch in pc.unique(named["epoch"]).to_pylist():
            yield topic, epoch, named.filter(pc.equal(named["epoch"], epoch))
