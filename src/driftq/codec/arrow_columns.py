"""Reads an Arrow IPC stream from a client, as columns of texts. All foreign Arrow bytes enter the server here.

A stream is a schema and then record batches. Arrow's own readers trust the metadata of a message: a wrong type or a
wrong size makes them read outside the body. So this module reads the metadata itself, with checks, and pyarrow gets
only buffers that are inside the body and long enough for their rows. pyarrow then checks offsets and UTF-8 before
anything is read through them. Invariants:

- The first message is a schema, every other one is a record batch. A number that points out of its message is an error.
- Columns are utf8, large_utf8 or null, without dictionaries, views and compression, each of which can refer to the same
  bytes many times: a column is never larger than the body.
- Bytes after the end of the stream are an error, so that no record is dropped silently.

Every fault raises an `InvalidRequestError` that describes it.

    message   0xFFFFFFFF | metadata bytes i32 (0: end of the stream) | metadata: a flatbuffer | body
    Message   0 version i16 | 1 type of header u8 | 2 header: a Schema or a RecordBatch | 3 body bytes i64
    Schema    0 endianness i16, 1 is big | 1 fields: a vector of Fields
    Field     0 name | 2 type u8 | 4 dictionary
    RecordBatch  0 rows i64 | 1 nodes: a vector of (rows i64, nulls i64) | 2 buffers: a vector of (start i64, bytes i64)
              3 compression
"""

from array import array
from collections.abc import Container, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from driftq.errors import BatchTooLargeError, InvalidRequestError
from driftq.storage.blocks.rows import Texts

_I64 = Struct("<q")
_I32 = Struct("<i")
_U32 = Struct("<I")
_I16 = Struct("<h")
_U16 = Struct("<H")
_U8 = Struct("<B")
_PAIR = Struct("<qq")

_BATCHES_MAX: Final = 10_000  # each takes the loop about 20 us, whatever it contains
_CONTINUATION: Final = 0xFFFFFFFF
_FILE_MAGIC: Final = b"ARROW1"
_VERSION_4: Final = 3
_SCHEMA, _RECORD_BATCH = 1, 3
_MESSAGE_TYPES: Final = ("nothing", "a schema", "a dictionary batch", "a record batch", "a tensor", "a sparse tensor")

_NULL, _UTF8, _LARGE_UTF8 = 1, 5, 20
_OFFSET_BYTES: Final = {_UTF8: 4, _LARGE_UTF8: 8}
_TYPE_NAMES: Final = (
    *("none", "null", "int", "float", "binary", "utf8", "bool", "decimal", "date", "time", "timestamp", "interval"),
    *("list", "struct", "union", "fixed_size_binary", "fixed_size_list", "map", "duration", "large_binary"),
    *("large_utf8", "large_list", "run_end_encoded", "binary_view", "utf8_view", "list_view", "large_list_view"),
)

_Fields = dict[str, int]
"""The type of each column by its name, in the order of the stream."""


def read_texts(body: bytes, known: Container[str], rows_max: int) -> tuple[dict[str, Texts], int]:
    """Return the columns that have a value, by name, and the number of rows.

    Raises InvalidRequestError for a stream that is malformed or has a column that is not in `known`, and
    BatchTooLargeError for one with more than `rows_max` rows.
    """
    import pyarrow as pa

    try:
        return _columns(pa, body, known, rows_max)
    except (pa.ArrowException, ValueError) as failure:
        raise _malformed(str(failure)[:200]) from None


def _columns(pa: Any, body: bytes, known: Container[str], rows_max: int) -> tuple[dict[str, Texts], int]:
    messages = _messages(body)
    first = next(messages, None)
    if first is None:
        raise _malformed("it has no schema")
    if first.kind != _SCHEMA:
        raise _malformed(f"its first message is {first.kind_name}; it must be a schema")
    fields = _schema(first.header, known)
    whole = pa.py_buffer(body)
    chunks: dict[str, list[Any]] = {name: [] for name, kind in fields.items() if kind != _NULL}
    rows = 0
    for number, message in enumerate(messages, 1):
        if message.kind != _RECORD_BATCH or message.header.place(3) is not None:
            raise InvalidRequestError("the Arrow stream must have plain buffers: no dictionaries, no compression")
        batch = _Batch(message)
        rows += batch.rows
        if number > _BATCHES_MAX:
            raise InvalidRequestError(f"the Arrow stream has more than {_BATCHES_MAX} record batches; send larger ones")
        if rows > rows_max:
            raise BatchTooLargeError(
                f"too many records in one write; the limit is {rows_max}", detail={"records": rows, "max": rows_max}
            )
        for name, array_of_rows in batch.arrays(pa, whole, fields):
            chunks[name].append(array_of_rows)
    columns = {name: pa.chunked_array(found) for name, found in chunks.items() if found}
    return {
        name: _texts(pa, column.cast(pa.utf8()).combine_chunks())
        for name, column in columns.items()
        if column.null_count < len(column)
    }, rows


def _malformed(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"the body is not an Arrow stream: {reason}")


# --- flatbuffers --------------------------------------------------------------------------------------------------


def _number(data: bytes, form: Struct, place: int) -> int:
    """Return the number at `place`. Raises InvalidRequestError if it is not inside `data`."""
    if place < 0 or place + form.size > len(data):
        raise _malformed("its metadata has an offset outside of the message")
    found: int = form.unpack_from(data, place)[0]
    return found


class _Table:
    """A table of a flatbuffer: fields by slot, each of which may be absent."""

    __slots__ = ("_data", "_place", "_slots", "_vtable")

    def __init__(self, data: bytes, place: int) -> None:
        self._data = data
        self._place = place
        self._vtable = place - _number(data, _I32, place)
        self._slots = (_number(data, _U16, self._vtable) - 4) >> 1

    def place(self, slot: int) -> int | None:
        """Return the position of the field in the data, or None if it is absent."""
        if slot >= self._slots:
            return None
        offset = _number(self._data, _U16, self._vtable + 4 + 2 * slot)
        return self._place + offset if offset else None

    def number(self, slot: int, form: Struct) -> int:
        """Return the number in the field, or 0 if it is absent."""
        place = self.place(slot)
        return 0 if place is None else _number(self._data, form, place)

    def table(self, slot: int) -> "_Table":
        """Return the table that the field points to. Raises InvalidRequestError if the field is absent."""
        place = self._target(slot)
        if place is None:
            raise _malformed("its metadata is incomplete")
        return _Table(self._data, place)

    def tables(self, slot: int) -> "Iterator[_Table]":
        """Yield the tables of a vector of tables; an absent vector is empty."""
        first, count = self._vector(slot, 4)
        for place in range(first, first + 4 * count, 4):
            yield _Table(self._data, place + _number(self._data, _U32, place))

    def pairs(self, slot: int) -> Iterator[tuple[int, int]]:
        """Return an iterator over a vector of structs of two i64; an absent vector is empty."""
        first, count = self._vector(slot, 16)
        return _PAIR.iter_unpack(memoryview(self._data)[first : first + 16 * count])

    def text(self, slot: int) -> str:
        """Return the text that the field points to, or "" if it is absent."""
        first, count = self._vector(slot, 1)
        return self._data[first : first + count].decode()

    def _target(self, slot: int) -> int | None:
        place = self.place(slot)
        return None if place is None else place + _number(self._data, _U32, place)

    def _vector(self, slot: int, item_bytes: int) -> tuple[int, int]:
        """Return the position of a vector's first item, and the number of items."""
        place = self._target(slot)
        if place is None:
            return 0, 0
        count = _number(self._data, _U32, place)
        if count * item_bytes > len(self._data) - place - 4:
            raise _malformed("its metadata has an offset outside of the message")
        return place + 4, count


# --- messages -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Message:
    """A message of the stream: its checked envelope, and the position of its body."""

    kind: int
    header: _Table
    body_start: int
    body_bytes: int

    @property
    def kind_name(self) -> str:
        """Return the type of the message in words."""
        return _MESSAGE_TYPES[self.kind] if self.kind < len(_MESSAGE_TYPES) else f"of the unknown type {self.kind}"


def _messages(body: bytes) -> Iterator[_Message]:
    """Yield the messages up to the end of the stream. Raises InvalidRequestError for one that is cut off."""
    if body.startswith(_FILE_MAGIC):
        raise _malformed("it is an Arrow file")
    place = 0
    while place < len(body):
        size = _number(body, _U32, place)
        place += 4
        if size == _CONTINUATION:
            size = _number(body, _U32, place)
            place += 4
        if not size:
            if place != len(body):
                raise _malformed(f"{len(body) - place} bytes follow its end")
            return
        if size > len(body) - place:
            raise _malformed(f"{size} bytes of metadata are declared at byte {place}; {len(body) - place} follow")
        message = _message(body[place : place + size], place + size)
        place = message.body_start + message.body_bytes
        if message.body_bytes < 0 or place > len(body):
            raise _malformed(
                f"a message body of {message.body_bytes} bytes is declared at byte {message.body_start}; "
                f"{len(body) - message.body_start} bytes follow"
            )
        yield message


def _message(metadata: bytes, body_start: int) -> _Message:
    found = _Table(metadata, _number(metadata, _U32, 0))
    if found.number(0, _I16) < _VERSION_4:
        raise _malformed("its metadata is older than version 4 of the format")
    return _Message(found.number(1, _U8), found.table(2), body_start, found.number(3, _I64))


def _schema(header: _Table, known: Container[str]) -> _Fields:
    """Return the columns. Raises InvalidRequestError for a column that is not part of a write."""
    if header.number(0, _I16):
        raise InvalidRequestError("the Arrow stream is big-endian; send it little-endian")
    fields: _Fields = {}
    for field in header.tables(1):
        name, kind = field.text(0), field.number(2, _U8)
        if name not in known:
            raise InvalidRequestError(f"column {name[:100]!r} is unknown; a write has data, tag, node and meta")
        if name in fields:
            raise InvalidRequestError(f"column {name!r} appears twice")
        if kind not in (_NULL, _UTF8, _LARGE_UTF8) or field.place(4) is not None:
            shown = "a dictionary" if field.place(4) is not None else _type_name(kind)
            raise InvalidRequestError(f"column {name!r} is {shown}; it must be utf8 or large_utf8")
        fields[name] = kind
    return fields


def _type_name(kind: int) -> str:
    return _TYPE_NAMES[kind] if kind < len(_TYPE_NAMES) else f"of the unknown type {kind}"


class _Batch:
    """A record batch: its rows, and the buffers of its columns, checked before they are used."""

    def __init__(self, message: _Message) -> None:
        self._message = message
        self.rows = message.header.number(0, _I64)
        if self.rows < 0:
            raise _malformed(f"a record batch has {self.rows} rows")

    def arrays(self, pa: Any, whole: Any, fields: _Fields) -> Iterator[tuple[str, Any]]:
        """Yield name and values of each column that can have values. Raises InvalidRequestError."""
        header = self._message.header
        nodes, buffers = header.pairs(1), header.pairs(2)
        for name, kind in fields.items():
            rows, nulls = next(nodes, (-1, 0))
            if rows != self.rows:
                raise _malformed(f"column {name!r} has {rows} rows in a record batch of {self.rows}")
            if kind == _NULL:
                continue
            parts = [self._part(pa, whole, next(buffers, (-1, 0)), name) for _ in range(3)]
            if rows:
                yield name, _values(pa, name, kind, (rows, nulls), parts)

    def _part(self, pa: Any, whole: Any, span: tuple[int, int], name: str) -> Any:
        """Return the bytes of one buffer, at an address that is a multiple of 8."""
        offset, size = span
        if offset < 0 or size < 0 or offset + size > self._message.body_bytes:
            raise _malformed(f"a buffer of column {name!r} is outside of its message")
        part = whole.slice(self._message.body_start + offset, size)
        return part if part.address % 8 == 0 else pa.py_buffer(part.to_pybytes())


def _values(pa: Any, name: str, kind: int, counts: tuple[int, int], parts: list[Any]) -> Any:
    """Return a column of a batch as an array, with offsets and UTF-8 checked."""
    rows, nulls = counts
    validity, offsets, data = parts
    if offsets.size < _OFFSET_BYTES[kind] * (rows + 1) or (validity.size and validity.size < (rows + 7) >> 3):
        raise _malformed(f"a buffer of column {name!r} is too short for {rows} rows")
    bits = validity if validity.size else None
    made = pa.Array.from_buffers(pa.utf8() if kind == _UTF8 else pa.large_utf8(), rows, [bits, offsets, data])
    if made.null_count != nulls:
        raise _malformed(f"column {name!r} declares {nulls} nulls and has {made.null_count}")
    made.validate(full=True)
    return made


# --- columns ------------------------------------------------------------------------------------------------------


def _texts(pa: Any, column: Any) -> Texts:
    """Return a column in our form: its offsets begin at 0, and a row without a value has no bytes."""
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
