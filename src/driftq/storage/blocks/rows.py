"""The records of one write, as columns. Request bodies are decoded to them, frames and blocks contain them.

A column of texts has Arrow's layout: `offsets` has one entry more than there are rows, row `i` is
`data[offsets[i]:offsets[i + 1]]`, and `valid` is a bitmap (bit `i % 8` of byte `i // 8`, 1 = present) or None if every
row has a value. An absent value is an empty range. Only the numbers in `offsets` exist once per record.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from struct import Struct as Layout
from typing import cast

from msgspec import Struct

from driftq.model.limits import BLOCK_RECORDS_MAX

_ESCAPED = bytes(range(32)) + b'"\\'


def is_plain(text: bytes) -> bool:
    """Whether the text needs no escaping inside a JSON string."""
    return len(text.translate(None, _ESCAPED)) == len(text)


def offsets_of(lengths: Iterable[int]) -> "array[int]":
    """Return Arrow offsets for values of these lengths."""
    # Packed in one call: filling an array number by number takes twice as long.
    totals = [0, *accumulate(lengths)]
    return array("i", _packer(len(totals))(*totals))


def sized_offsets(sizes: Sequence[int]) -> "array[int]":
    """Return Arrow offsets for values of these sizes, in a tenth of the time if all are equal, as for generated ids."""
    rows = len(sizes)
    size = sizes[0]
    if size == sizes[-1] == sizes[rows >> 1] and sizes.count(size) == rows:
        return array("i", _even(rows, size) if rows <= BLOCK_RECORDS_MAX else _steps(rows, size))
    return offsets_of(sizes)


def _steps(rows: int, size: int) -> bytes:
    return array("i", range(0, size * rows + 1, size)).tobytes() if size else bytes(4 * (rows + 1))


_even = lru_cache(maxsize=512)(_steps)


@lru_cache(maxsize=2048)
def _packer(count: int) -> Callable[..., bytes]:
    return Layout(f"{count}i").pack


def shifted(offsets: "array[int]", base: int) -> bytes:
    """Return the offsets except the first, each larger by `base`, as bytes of int32.

    Uses one addition of long integers, in which each offset is a digit of 32 bits that cannot carry, instead of one
    addition per row.
    """
    rows = len(offsets) - 1
    ones = _ONES.get(rows)
    if ones is None:
        ones = int.from_bytes(b"\1\0\0\0" * rows, "little")
        if rows <= _ONES_ROWS_MAX:
            _ONES[rows] = ones
    return (int.from_bytes(memoryview(offsets)[1:].cast("B"), "little") + base * ones).to_bytes(4 * rows, "little")


_ONES: dict[int, int] = {}
_ONES_ROWS_MAX = 1024


class Texts:
    """One column of texts. Immutable once made."""

    __slots__ = ("_offsets", "_sizes", "pieces", "valid")

    def __init__(self, data: bytes, offsets: "array[int]", valid: bytes | None = None) -> None:
        self.pieces = [data]
        """The values back to back, in the pieces in which they came: a frame is built from them without another copy.
        """
        self.valid = valid
        self._offsets: array[int] | None = offsets
        self._sizes: list[int] | None = None

    @staticmethod
    def sized(data: bytes, sizes: list[int], valid: bytes | None = None) -> "Texts":
        """Return a column of values of these lengths.

        Its offsets are made on first use, so columns that are joined first need them only once.
        """
        made = Texts.__new__(Texts)
        made.pieces = [data]
        made.valid = valid
        made._offsets = None
        made._sizes = sizes
        return made

    @property
    def data(self) -> bytes:
        """Return the values back to back."""
        if len(self.pieces) != 1:
            self.pieces = [b"".join(self.pieces)]
        return self.pieces[0]

    @property
    def offsets(self) -> "array[int]":
        """Return the start of each value, and the end of the last one."""
        if self._offsets is None:
            assert self._sizes is not None
            self._offsets = sized_offsets(self._sizes) if len(self._sizes) > 1 else offsets_of(self._sizes)
        return self._offsets

    @property
    def count(self) -> int:
        """Return the number of rows."""
        return len(self._sizes) if self._sizes is not None else len(self.offsets) - 1

    def __getitem__(self, row: int) -> bytes | None:
        """Return one value, or None if the row has none."""
        if self.valid is not None and not self.valid[row >> 3] >> (row & 7) & 1:
            return None
        return self.data[self.offsets[row] : self.offsets[row + 1]]

    def plain(self) -> bool:
        """Whether no value needs escaping inside a JSON string."""
        return is_plain(self.data)

    @staticmethod
    def joined(columns: Sequence["Texts"]) -> "Texts":
        """Return one column with the rows of several, in order."""
        valid = None
        if any(column.valid is not None for column in columns):
            valid = bitmap(b"".join([column.present() for column in columns]))
        sizes = [column._sizes for column in columns if column._sizes is not None]
        if len(sizes) == len(columns):
            made = Texts.sized(b"", list(chain.from_iterable(sizes)), valid)
            made.pieces = list(chain.from_iterable([column.pieces for column in columns]))
            return made
        offsets = array("i", (0,))
        base = 0
        for column in columns:
            offsets.frombytes(shifted(column.offsets, base))
            base = offsets[-1]
        return Texts(b"".join([column.data for column in columns]), offsets, valid)

    def present(self) -> bytes:
        """Return a byte for each row: 1 if it has a value."""
        return b"\x01" * self.count if self.valid is None else partition_column(self.valid, self.count)

    @staticmethod
    def of(values: Sequence[bytes | None]) -> "Texts":
        """Return a column of these values."""
        if None not in values:
            return Texts(b"".join(values), offsets_of(map(len, values)))  # type: ignore[arg-type]
        present = [value or b"" for value in values]
        return Texts(b"".join(present), offsets_of(map(len, present)), bitmap([v is not None for v in values]))


def bitmap(present: Iterable[int]) -> bytes:
    """Return Arrow's validity bitmap, made from a 0 or 1 per row: least significant bit first."""
    digits = bytes(present).translate(_TO_DIGITS)[::-1]
    return int(digits or b"0", 2).to_bytes((len(digits) + 7) >> 3, "little")


_TO_DIGITS = bytes(48 + (value & 1) for value in range(256))


def partition_column(valid: bytes, rows: int) -> bytes:
    """Return a validity bitmap as one byte per row: 1 = present."""
    return b"".join(map(_EIGHT.__getitem__, valid))[:rows]


_EIGHT = [bytes(value >> bit & 1 for bit in range(8)) for value in range(256)]


class Row(Struct, frozen=True, gc=False):
    """A write of one record with data and perhaps a tag, and nothing else. Columns are made from many at once."""

    data: bytes
    tag: bytes | None
    payload_bytes: int
    count: int = 1
    batch_node: None = None

    def rows(self) -> "Rows":
        """Return the record as columns."""
        return Rows.of([self])


class Rows:
    """The records of one write. `payload_bytes` counts bytes as the contract does: data plus meta."""

    __slots__ = ("batch_node", "count", "data", "meta", "node", "payload_bytes", "tag")

    def __init__(
        self,
        data: Texts,
        *,
        tag: Texts | None = None,
        node: Texts | None = None,
        meta: Texts | None = None,
        batch_node: bytes | None = None,
    ) -> None:
        self.count = data.count
        self.data = data
        self.tag = tag
        self.node = node
        self.meta = meta
        self.batch_node = batch_node
        pieces = data.pieces
        self.payload_bytes = len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
        if meta is not None:
            self.payload_bytes += sum(map(len, meta.pieces))

    @property
    def has_no_more_than_tags(self) -> bool:
        """Whether the rows have only data and perhaps tags."""
        return self.meta is None and self.node is None and self.batch_node is None

    @staticmethod
    def of(singles: Sequence[Row]) -> "Rows":
        """Return the columns of these single records."""
        datas = [row.data for row in singles]
        tags = [row.tag for row in singles]
        tag = None
        if None not in tags:
            present = cast("list[bytes]", tags)
            tag = Texts.sized(b"".join(present), list(map(len, present)))
        elif any(value is not None for value in tags):
            tag = Texts.of(tags)
        return Rows(Texts.sized(b"".join(datas), list(map(len, datas))), tag=tag)

    @staticmethod
    def joined(several: Sequence["Rows | Row"]) -> "Rows":
        """Return the rows of several writes, in order. A node that the rows of a write share becomes each row's own."""
        kinds = set(map(type, several))
        if kinds == {Row}:
            return Rows.of(cast("Sequence[Row]", several))
        writes = [write.rows() if isinstance(write, Row) else write for write in several]
        if len(writes) == 1:
            return writes[0]
        datas = Texts.joined([write.data for write in writes])
        tags = [write.tag for write in writes]
        if None not in tags and all(write.has_no_more_than_tags for write in writes):
            return Rows(datas, tag=Texts.joined(cast("list[Texts]", tags)))
        counts = [write.count for write in writes]
        nodes = [
            write.node
            if write.node is not None or write.batch_node is None
            else Texts.of([write.batch_node] * write.count)
            for write in writes
        ]
        return Rows(
            datas,
            tag=_joined(tags, counts),
            node=_joined(nodes, counts),
            meta=_joined([write.meta for write in writes], counts),
        )


def _joined(columns: Sequence[Texts | None], counts: Sequence[int]) -> Texts | None:
    """Return one column made from several, some of which may be absent."""
    if all(column is None for column in columns):
        return None
    return Texts.joined(
        [
            column if column is not None else Texts(b"", array("i", bytes(4 * count + 4)), bytes((count + 7) >> 3))
            for column, count in zip(columns, counts, strict=True)
        ]
    )
