"""The body of a write as an Arrow stream (http-v0 §22.1). Records and limits are those of a JSON body.

`data` and `meta` are JSON text. All values of `data` are parsed at once, as one JSON array: if each value of that array
is as long as its row, each row is one value. Only a column that fails is checked row by row, to name the row.
"""

from collections.abc import Sequence
from operator import sub

from msgspec import Raw
from msgspec.json import Decoder

from driftq.codec import json_text
from driftq.codec.arrow_columns import read_texts
from driftq.codec.write_body import check_data, meta_column
from driftq.errors import InvalidRequestError
from driftq.model.limits import Limits
from driftq.storage.blocks.block import slices
from driftq.storage.blocks.rows import Rows, Texts

_COLUMNS = frozenset(("data", "tag", "node", "meta"))
_VALUES = Decoder(list[Raw])
_VALUE = Decoder(Raw)
_META = Decoder(dict[str, str])
_SPACE = b" \n\t\r"


def decode_arrow(body: bytes, limits: Limits, rows_max: int, *, node: str | None = None) -> Rows:
    """Return the rows of a write. `node` is for the rows that have no node of their own. Raises InvalidRequestError."""
    columns, count = read_texts(body, _COLUMNS, rows_max)
    if not count:
        raise InvalidRequestError("the Arrow stream has no records")
    data = columns.get("data")
    if data is None or data.valid is not None:
        row = 0 if data is None else data.present().index(0)
        raise InvalidRequestError(f"column 'data' has no value in row {row}; for a JSON null, write the text null")
    tag = _limited(columns.get("tag"), "tag", limits.tag_bytes_max)
    own, batch_node = _nodes(_limited(columns.get("node"), "node", limits.node_bytes_max), node, limits.node_bytes_max)
    meta = _metas(columns.get("meta"), limits)
    values = _checked(slices(data.data, 0, data.offsets))
    return Rows(check_data(values, meta, limits), tag=tag, node=own, meta=meta, batch_node=batch_node)


def _limited(column: Texts | None, what: str, most: int) -> Texts | None:
    if column is not None:
        sizes = list(map(sub, column.offsets[1:], column.offsets))
        if max(sizes) > most:
            row, size = next((row, size) for row, size in enumerate(sizes) if size > most)
            raise InvalidRequestError(f"{what} of row {row} is {size} bytes; the limit is {most}")
    return column


def _nodes(own: Texts | None, batch: str | None, most: int) -> tuple[Texts | None, bytes | None]:
    """Return the column of nodes, with `batch` in rows without a node, and None.

    Without a column, return None and `batch`.
    """
    common = None if not batch else batch.encode("utf-8", "replace")
    if common is not None and len(common) > most:
        raise InvalidRequestError(f"node is {len(common)} bytes; the limit is {most}")
    if own is None or common is None or own.valid is None:
        return own, common if own is None else None
    values, present = slices(own.data, 0, own.offsets), own.present()
    return Texts.of([value if here else common for value, here in zip(values, present, strict=True)]), None


def _metas(column: Texts | None, limits: Limits) -> Texts | None:
    if column is None:
        return None
    metas: list[dict[str, str] | None] = []
    for row, (text, here) in enumerate(zip(slices(column.data, 0, column.offsets), column.present(), strict=True)):
        try:
            metas.append(json_text.parse(_META, text) if here else None)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"meta of row {row} is not a JSON object of strings: {error.message}") from None
    return meta_column(metas, limits.meta_bytes_max)


def _checked(values: Sequence[bytes]) -> Sequence[bytes]:
    """Return the values as compact JSON. Raises InvalidRequestError with the row."""
    found = _parsed(values)
    if found is None:
        values = [value.strip(_SPACE) for value in values]
        found = _parsed(values)
    if found is None:
        raise _bad_row(values)
    text = b"[%b]" % b",".join(values)
    whole = json_text.compact(text)
    return values if whole is text else _VALUES.decode(whole)


def _parsed(values: Sequence[bytes]) -> Sequence[bytes] | None:
    """Return the values if each of them is one JSON value without space around it, else None."""
    try:
        found = json_text.parse(_VALUES, b"[%b]" % b",".join(values))
    except InvalidRequestError:
        return None
    return values if list(map(len, found)) == list(map(len, values)) else None


def _bad_row(values: Sequence[bytes]) -> InvalidRequestError:
    for row, value in enumerate(values):
        try:
            json_text.parse(_VALUE, value)
        except InvalidRequestError as error:
            return InvalidRequestError(f"data of row {row} is not JSON: {error.message}")
    return InvalidRequestError("data is not JSON")
