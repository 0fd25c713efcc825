"""Blocks as Arrow: the columns of a frame wrapped in place, and rows with the six columns that clients see.

The columns of an Append frame have Arrow's layout (`storage/blocks/frame_columns`), so an array over one consists of
three slices of the frame: no byte is copied, and the frame lives as long as any array over it. The bytes are not
checked to be UTF-8 again: the decoder of the write has done that.

    seq  uint64 not null          ts    timestamp[ms, UTC] not null          node  utf8
    tag  utf8                     meta  utf8                                 data  utf8 not null

pyarrow has no type hints and is slow to import. So the first call imports it, and the protocols below describe the
results. Small arrays and scalars are made from bytes, never from Python values: for those, pyarrow checks whether they
are from pandas and, if it is installed, imports all of it first, which takes half a second and 50 MiB.
"""

from array import array
from collections.abc import Container, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

from driftq.storage.blocks.block import Block, all_set
from driftq.storage.blocks.frame_columns import DATA, META, NODE, TAG, TS, up8

_TEXTS = (("tag", TAG), ("node", NODE), ("meta", META), ("data", DATA))


class Buffer(Protocol):
    """The parts of a `pyarrow.Buffer` that are used here."""

    @property
    def address(self) -> int:
        """Return the memory address of the first byte."""
        ...

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        ...

    def to_pybytes(self) -> bytes:
        """Return a copy of the bytes."""
        ...


class Array(Protocol):
    """The parts of a `pyarrow.Array`, one column, that are used here."""

    @property
    def null_count(self) -> int:
        """Return the number of rows without a value."""
        ...

    @property
    def offset(self) -> int:
        """Return the index of the first row in the buffers."""
        ...

    def __len__(self) -> int: ...

    def buffers(self) -> list[Buffer | None]:
        """Return validity, offsets and bytes of a column of texts, or validity and numbers of a column of numbers."""
        ...

    def to_pylist(self) -> list[object]:
        """Return the values as Python objects."""
        ...


class ArrowBatch(Protocol):
    """The parts of a `pyarrow.RecordBatch`, equally long columns under a schema, that are used here."""

    @property
    def num_rows(self) -> int:
        """Return the number of rows."""
        ...

    def slice(self, offset: int = 0, length: int | None = None) -> "ArrowBatch":
        """Return a range of rows without a copy."""
        ...

    def column(self, i: int) -> Array:
        """Return one column by its index."""
        ...


class Schema(Protocol):
    """The parts of a `pyarrow.Schema` that are used here."""

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the columns."""
        ...


@cache
def record_schema() -> Schema:
    """Return the columns of records wherever they leave the server as Arrow or Parquet."""
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
    """Return the columns that the block has (of `ts`, `tag`, `node`, `meta`, `data`), over the memory of the frame."""
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
    """Return one value for Arrow's kernels."""
    import pyarrow as pa

    ends = array("i", (0, len(value)))
    return pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(ends), pa.py_buffer(value)])[0]


def block_batch(block: Block, without: Container[str] = ()) -> ArrowBatch:
    """Return all rows of a block under `record_schema`. Columns that the block has are not copied.

    Columns in `without` are left empty.
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
    """Return some rows of a batch, without a copy if they are consecutive."""
    import pyarrow as pa

    if isinstance(rows, range):
        return batch if len(rows) == batch.num_rows else batch.slice(rows[0], len(rows))
    places = pa.Array.from_buffers(pa.uint32(), len(rows), [None, pa.py_buffer(array("I", rows))])
    found: ArrowBatch = batch.take(places)  # type: ignore[attr-defined]
    return found


def joined(batches: Sequence[ArrowBatch]) -> ArrowBatch:
    """Return the rows of several batches as one batch."""
    import pyarrow as pa

    found: ArrowBatch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    return found


END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def stream_pieces(batches: Sequence[ArrowBatch], facts: Mapping[str, str]) -> list[bytes]:
    """Return one IPC stream of batches under `record_schema` with facts in its metadata, in pieces to send in order."""
    schema = record_schema().with_metadata(dict(facts))  # type: ignore[attr-defined]
    messages = [schema.serialize(), *(batch.serialize() for batch in batches)]  # type: ignore[attr-defined]
    pieces: list[Any] = [memoryview(message) for message in messages]
    return [*pieces, END_OF_STREAM]
