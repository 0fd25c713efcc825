"""An Arrow IPC stream from outside, as columns of texts. Nothing about it is believed.

Columns are utf8 or large_utf8, so their bytes stand in the body and cannot be more than it has: no dictionaries, no
views, no compressed buffers, each of which can name the same bytes many times. Offsets and UTF-8 are checked before
anything is read. Whatever is wrong is an `InvalidRequestError` that says what.
"""

from array import array
from collections.abc import Container
from struct import Struct, error
from typing import Any

from driftq.errors import BatchTooLargeError, InvalidRequestError
from driftq.storage.rows import Texts

_I32 = Struct("<i").unpack_from
_U16 = Struct("<H").unpack_from
_HEADER_SLOT = 2
_COMPRESSION_SLOT = 3


def read_texts(body: bytes, known: Container[str], rows_max: int) -> tuple[dict[str, Texts], int]:
    """The columns by name, those without any value left out, and the number of rows."""
    import pyarrow as pa

    try:
        return _columns(pa, _batches(pa, body, known, rows_max))
    except (pa.ArrowException, OSError, ValueError, error) as failure:
        raise InvalidRequestError(f"the body is no Arrow stream: {str(failure)[:200]}") from None


def _batches(pa: Any, body: bytes, known: Container[str], rows_max: int) -> Any:
    """All batches as one table."""
    reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(body))
    try:
        schema = pa.ipc.read_schema(reader.read_next_message())
    except StopIteration:
        raise InvalidRequestError("the body is no Arrow stream: it has no schema") from None
    _check_schema(pa, schema, known)
    batches, rows = [], 0
    for message in reader:
        if message.type != "record batch" or _is_compressed(memoryview(message.metadata)):
            raise InvalidRequestError("the Arrow stream must have plain buffers: no dictionaries, no compression")
        batch = pa.ipc.read_record_batch(message, schema)
        rows += batch.num_rows
        if rows > rows_max:
            raise BatchTooLargeError(
                f"more than {rows_max} records in one write", detail={"records": rows, "max": rows_max}
            )
        batch.validate(full=True)
        batches.append(batch)
    return pa.Table.from_batches(batches, schema)


def _check_schema(pa: Any, schema: Any, known: Container[str]) -> None:
    names: list[str] = schema.names
    for name in names:
        if name not in known or names.count(name) > 1:
            raise InvalidRequestError(f"column {name[:100]!r} is none that a write has, or is there twice")
        kind = schema.field(name).type
        if not (kind.equals(pa.utf8()) or kind.equals(pa.large_utf8()) or kind.equals(pa.null())):
            raise InvalidRequestError(f"column {name!r} is {kind}, and must be utf8 or large_utf8")


def _columns(pa: Any, table: Any) -> tuple[dict[str, Texts], int]:
    found = {}
    for name in table.column_names:
        column = table.column(name)
        if column.null_count < len(column):
            found[name] = _texts(pa, column.cast(pa.utf8()).combine_chunks())
    return found, table.num_rows


def _texts(pa: Any, column: Any) -> Texts:
    """A column of ours: from offset 0, and nothing where there is no value."""
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    rows = len(column)
    valid = None
    if column.null_count:
        valid = column.is_valid().buffers()[1].to_pybytes()[: (rows + 7) >> 3]
        column = column.fill_null("")
    _, offset_buffer, data_buffer = column.buffers()
    offsets = array("i", memoryview(offset_buffer)[4 * column.offset : 4 * (column.offset + rows + 1)].tobytes())
    base, end = offsets[0], offsets[-1]
    if base:
        offsets = array("i", [offset - base for offset in offsets])
    data = b"" if data_buffer is None else memoryview(data_buffer)[base:end].tobytes()
    return Texts(data, offsets, valid)


def _is_compressed(metadata: memoryview) -> bool:
    """Does a RecordBatch message say that its buffers are compressed? Arrow would unpack them before we could look."""
    message = _I32(metadata, 0)[0]
    header = _field(metadata, message, _HEADER_SLOT)
    return header is not None and _field(metadata, header + _I32(metadata, header)[0], _COMPRESSION_SLOT) is not None


def _field(buffer: memoryview, table: int, slot: int) -> int | None:
    """Where a field of a flatbuffer's table stands, if it is there."""
    vtable = table - _I32(buffer, table)[0]
    if 4 + 2 * slot >= _U16(buffer, vtable)[0]:
        return None
    offset: int = _U16(buffer, vtable + 4 + 2 * slot)[0]
    return table + offset if offset else None
