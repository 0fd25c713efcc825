"""Blocks as Arrow: the columns of a frame wrapped where they stand, and rows in the six columns that the world sees.

The columns of an Append frame are laid out as Arrow lays them out (`storage/blocks/frame_columns`), so wrapping one is
naming three slices of the frame: no byte is copied, and the frame lives as long as any array over it does. Bytes are
not checked to be UTF-8 again, ingest has done that.

    seq  uint64 not null          ts    timestamp[ms, UTC] not null          node  utf8
    tag  utf8                     meta  utf8                                 data  utf8 not null

pyarrow ships no types and takes long to import: it is imported by the first call, and what leaves here is typed by the
protocols below. Small arrays and scalars are made over bytes, never of Python values: for those pyarrow looks whether
they are from pandas, and imports all of that first, half a second and 50 MiB, where it is installed.
"""

from array import array
from collections.abc import Container, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

from driftq.storage.blocks.block import Block, all_set
from driftq.storage.blocks.frame_columns import DATA, META, NODE, TAG, TS, up8

_TEXTS = (("tag", TAG), ("node", NODE), ("meta", META), ("data", DATA))


class Buffer(Protocol):
    """A `pyarrow.Buffer`: bytes that somebody keeps alive."""

    @property
    def address(self) -> int:
        """Where its first byte is in memory."""
        ...

    @property
    def size(self) -> int:
        """Its bytes."""
        ...

    def to_pybytes(self) -> bytes:
        """A copy."""
        ...


class Array(Protocol):
    """A `pyarrow.Array`: one column."""

    @property
    def null_count(self) -> int:
        """Rows without a value."""
        ...

    @property
    def offset(self) -> int:
        """The row of its buffers that is its first."""
        ...

    def __len__(self) -> int: ...

    def buffers(self) -> list[Buffer | None]:
        """Validity, offsets and bytes of a column of texts; validity and numbers of a column of numbers."""
        ...

    def to_pylist(self) -> list[object]:
        """Its values as Python objects."""
        ...


class ArrowBatch(Protocol):
    """A `pyarrow.RecordBatch`: equally long columns under a schema."""

    @property
    def num_rows(self) -> int:
        """Its rows."""
        ...

    def slice(self, offset: int = 0, length: int | None = None) -> "ArrowBatch":
        """Some of its rows, without a copy."""
        ...

    def column(self, i: int) -> Array:
        """One column."""
        ...


class Schema(Protocol):
    """A `pyarrow.Schema`."""

    @property
    def names(self) -> Sequence[str]:
        """The columns."""
        ...


@cache
def record_schema() -> Schema:
    """The columns of records wherever they leave as Arrow or Parquet."""
    import pyarrow as pa

    schema: Schema = pa.schema(
        [
            pa.field("seq", pa.uint64(), nullable=False),
            pa.field("ts", pa.timestamp("ms", "UTC"), nullable=False),
            pa.field("node", pa.utf8()),
            pa.field("tag", pa.utf8()),
            pa.field("meta", pa.utf8()),
            pa.field("data", pa.utf8(), nullable=False),
        ]
    )
    return schema


def block_arrays(block: Block) -> dict[str, Array]:
    """The columns that the block has (of `ts`, `tag`, `node`, `meta`, `data`), over the frame's own memory."""
    import pyarrow as pa

    frame, count = pa.py_buffer(block.frame), block.count
    arrays: dict[str, Array] = {}
    if block.bits & TS:
        start, size = block.span(TS)
        arrays["ts"] = pa.Array.from_buffers(pa.timestamp("ms", "UTC"), count, [None, frame.slice(start, size)])
    for name, bit in _TEXTS:
        if bit and not block.bits & bit:
            continue
        start, size = block.span(bit)
        valid, nulls, offsets = None, 0, start
        if bit:
            bitmap = (count + 7) >> 3
            offsets += up8(bitmap)
            valid = frame.slice(start, bitmap)
            nulls = 0 if all_set(bytes(block.frame[start : start + bitmap]), count) else -1
        text = offsets + up8(4 * (count + 1))
        buffers = [valid, frame.slice(offsets, 4 * (count + 1)), frame.slice(text, start + size - text)]
        arrays[name] = pa.Array.from_buffers(pa.utf8(), count, buffers, nulls)
    return arrays


def binary_scalar(value: bytes) -> Any:
    """One value for Arrow's kernels."""
    import pyarrow as pa

    ends = array("i", (0, len(value)))
    return pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(ends), pa.py_buffer(value)])[0]


def block_batch(block: Block, without: Container[str] = ()) -> ArrowBatch:
    """All rows of a block under `record_schema`. Columns that the block has are not copied.

    Those of `without` are left empty.
    """
    import pyarrow as pa

    arrays, count = block_arrays(block), block.count
    seqs = pa.arange(block.first_seq, block.first_seq + count).view(pa.uint64())
    times = arrays.get("ts")
    if times is None:
        same = pa.py_buffer(array("q", (block.ts,)) * count)
        times = pa.Array.from_buffers(pa.timestamp("ms", "UTC"), count, [None, same])
    node = block.batch_node
    if node is not None:
        arrays["node"] = pa.repeat(binary_scalar(node), count).view(pa.utf8())
    texts = [
        arrays[name] if name in arrays and name not in without else pa.nulls(count, pa.utf8())
        for name in ("node", "tag", "meta", "data")
    ]
    batch: ArrowBatch = pa.RecordBatch.from_arrays([seqs, times, *texts], schema=record_schema())
    return batch


def picked(batch: ArrowBatch, rows: Sequence[int]) -> ArrowBatch:
    """Some rows of a batch; without a copy where they are one behind the other."""
    import pyarrow as pa

    if isinstance(rows, range):
        return batch if len(rows) == batch.num_rows else batch.slice(rows[0], len(rows))
    places = pa.Array.from_buffers(pa.uint32(), len(rows), [None, pa.py_buffer(array("I", rows))])
    found: ArrowBatch = batch.take(places)  # type: ignore[attr-defined]
    return found


def joined(batches: Sequence[ArrowBatch]) -> ArrowBatch:
    """The rows of several batches, in one."""
    import pyarrow as pa

    found: ArrowBatch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    return found


END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def stream_pieces(batches: Sequence[ArrowBatch], facts: Mapping[str, str]) -> list[bytes]:
    """One IPC stream of batches under `record_schema`, the facts in its metadata: in pieces, to be sent as they are."""
    schema = record_schema().with_metadata(dict(facts))  # type: ignore[attr-defined]
    messages = [schema.serialize(), *(batch.serialize() for batch in batches)]  # type: ignore[attr-defined]
    pieces: list[Any] = [memoryview(message) for message in messages]
    return [*pieces, END_OF_STREAM]
