"""Decode the body of a write into columns.

Owns which bodies are writes (http-v0 §1.3, §3, §4.1, §7) and which error an invalid one gets: JSON and types first,
then the number of records, then depth, names and limits, then the size of a record. Every refusal is an
`InvalidRequestError` or one of its two subclasses, whatever the bytes. The returned rows are within the limits, `data`
and `meta` are compact JSON (`codec/json_text`), and nothing in them keeps the body alive.

The cost is a few passes at C speed over the records. Only records with a meta, and long ones, cost a statement each.
"""

from collections.abc import Sequence
from operator import add, sub
from typing import cast

from msgspec import MsgspecError, Raw, Struct
from msgspec.json import Decoder, Encoder

from driftq.codec import json_text
from driftq.codec.topic_config_body import check_ranges
from driftq.errors import BatchTooLargeError, InvalidRequestError, RecordTooLargeError
from driftq.model.limits import KEY_BYTES_MAX, META_KEYS_MAX, NESTING_MAX, U64_MAX, Limits
from driftq.model.topic_config import TopicConfig
from driftq.storage.blocks.rows import Row, Rows, Texts, bitmap, offsets_of


class WriteRequest(Struct, frozen=True):
    """One write as requested: valid, but not yet checked against the state of its topic."""

    rows: Rows | Row
    idempotency_key: str | None = None
    create: bool | None = None
    config: TopicConfig | None = None
    disable_backpressure: bool = False

    @property
    def columns(self) -> Rows:
        """Return the rows as columns, even for a single record."""
        return self.rows.rows() if isinstance(self.rows, Row) else self.rows


class RecordBody(Struct, gc=False):
    """One record as a writer sends it."""

    data: Raw
    tag: str | None = None
    node: str | None = None
    meta: dict[str, str] | None = None


class WriteBody(Struct, gc=False):
    """The body of a write as a client sends it."""

    records: list[RecordBody]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: TopicConfig | None = None
    disable_backpressure: bool = False


class _PlainRecord(Struct, gc=False, forbid_unknown_fields=True):
    data: Raw
    tag: str | None = None


class _PlainBody(Struct, gc=False, forbid_unknown_fields=True):
    """A body whose records have only data and tag, as most have. If it decodes, there are no other fields to check."""

    records: list[_PlainRecord]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: TopicConfig | None = None
    disable_backpressure: bool = False


class _Unread(Struct, frozen=True, gc=False):
    """A record that is only counted."""


class _Count(Struct, gc=False):
    records: list[_Unread]


_BODY = Decoder(WriteBody)
_PLAIN = Decoder(_PlainBody)
_COUNT = Decoder(_Count)
_META = Encoder()

_MORE_FIELDS = (b'"node"', b'"config"', b'"disable_backpressure"')
_EDGE_BYTES = 256
"""In a large body, fields other than the records are nearly always within this many bytes of its ends."""
_AROUND_DATA = 3
"""Levels around `data`: the body, `records`, the record. So a body may be this much deeper than a value."""

_RECORD_FRAME = len('{"data":},')
_TAG_FRAME = len(',"tag":""')
_NODE_FRAME = len(',"node":""')
_META_FRAME = len(',"meta":')
_SHORTEST_RECORD = len('{"data":1},')
_FLOOD = 16
"""If a body may have more than this many times the allowed records, they are counted before they are decoded."""
_ESCAPE_BYTES_MAX = 6
"""Bytes that one byte of compact JSON can take at most before its escapes are rewritten."""


def decode_write(body: bytes, limits: Limits, *, default_key: str | None = None) -> WriteRequest:
    """Return the write in a body. `default_key` is the idempotency key of the header, for a body without one."""
    body = json_text.compact(body)
    size = len(body)
    if size > _FLOOD * _SHORTEST_RECORD * limits.batch_records_max:
        _check_flood(body, limits)
    wire = _parsed(body)
    if wire.config is not None:
        check_ranges(wire.config)
    count = len(wire.records)
    if not 0 < count <= limits.batch_records_max:
        _check_count(count, limits)
    key = default_key if wire.idempotency_key is None else wire.idempotency_key
    if key is not None:
        key = check_key(key)
    row = _single_row(body, wire, limits) if count == 1 else None
    return WriteRequest(row or _rows(body, wire, limits), key, wire.create, wire.config, wire.disable_backpressure)


def brings_config(body: bytes) -> bool:
    """Whether the body of a write has a config. Only types and the ranges of the config are checked."""
    config = json_text.parse(_BODY, json_text.compact(body)).config
    if config is not None:
        check_ranges(config)
    return config is not None


def _parsed(body: bytes) -> _PlainBody | WriteBody:
    """Return the body, as a plain one if possible. For an invalid body, the decoder that knows every field raises."""
    try:
        return _PLAIN.decode(body)
    except (MsgspecError, RecursionError):
        return json_text.parse(_BODY, body)


def make_rows(
    datas: Sequence[bytes],
    tags: Sequence[str | None] | None = None,
    nodes: Sequence[str | None] | None = None,
    metas: Sequence[bytes | None] | None = None,
    batch_node: str | None = None,
) -> Rows:
    """Return rows of values that are already compact JSON, for callers in the process: nothing is checked."""
    tag = _texts(tags, "tag", U64_MAX) if tags else None
    node, batch = _nodes(nodes or (), batch_node, U64_MAX)
    meta = None if metas is None or metas.count(None) == len(metas) else Texts.of(metas)
    return Rows(Texts.of(datas), tag=tag, node=node, meta=meta, batch_node=batch)


def _rows(body: bytes, wire: _PlainBody | WriteBody, limits: Limits) -> Rows:
    """Return the columns, with every limit of a record checked."""
    meta = None
    if isinstance(wire, _PlainBody):
        # Written twice: access to an attribute of two kinds of object costs twice as much.
        tag = _texts([record.tag for record in wire.records], "tag", limits.tag_bytes_max)
        datas: list[bytes] = [record.data for record in wire.records]
        node, batch_node = None, None
        if wire.node is not None:
            node, batch_node = _nodes((), wire.node, limits.node_bytes_max)
    else:
        tag = _texts([record.tag for record in wire.records], "tag", limits.tag_bytes_max)
        datas = [record.data for record in wire.records]
        node, batch_node = _nodes([record.node for record in wire.records], wire.node, limits.node_bytes_max)
        meta = meta_column([record.meta for record in wire.records], limits.meta_bytes_max)
    text, sizes = b"".join(datas), list(map(len, datas))
    longest = max(sizes)
    if longest >= json_text.DEEP_BYTES:
        _check_values(text, offsets_of(sizes), 0, len(sizes))
    around = _bytes_of(tag, _TAG_FRAME)
    if not isinstance(wire, _PlainBody):
        own = node if wire.node is None else None
        around += _bytes_of(own, _NODE_FRAME) + _bytes_of(meta, _META_FRAME)
    if len(body) - len(text) - len(sizes) * _RECORD_FRAME - around >= json_text.DEEP_BYTES:
        _check_rest(body, text, len(sizes))
    if json_text.has_spare_escapes(text):
        _check_sizes([size // _ESCAPE_BYTES_MAX for size in sizes], limits)
        datas = json_text.with_fewest_escapes(datas)
        text, sizes = b"".join(datas), list(map(len, datas))
        longest = max(sizes)
    if meta is not None:
        _check_sizes(list(map(add, sizes, map(sub, meta.offsets[1:], meta.offsets))), limits)
    elif longest > limits.record_bytes_max:
        _check_sizes(sizes, limits)
    return Rows(Texts.sized(text, sizes), tag=tag, node=node, meta=meta, batch_node=batch_node)


def decode_plain(body: bytes, limits: Limits) -> tuple[Rows | Row, bytes | None] | None:
    """Return the records and the idempotency key of a body without other fields except `create`.

    The records have only data and tags. Returns None for every other body, valid or not: `decode_write` handles those
    and reports what is wrong with them.
    """
    if len(body) > 2 * _EDGE_BYTES:
        if len(body) > _FLOOD * _SHORTEST_RECORD * limits.batch_records_max:
            return None
        edges = body[:_EDGE_BYTES] + body[-_EDGE_BYTES:]
        if any(field in edges for field in _MORE_FIELDS):
            return None
    try:
        body = json_text.compact(body)
        wire = _PLAIN.decode(body)
        if wire.config is not None or wire.disable_backpressure or wire.node is not None:
            return None
        key = None if not wire.idempotency_key else wire.idempotency_key.encode()
        if key is not None and len(key) > KEY_BYTES_MAX:
            return None
        count = len(wire.records)
        if count == 1:
            row = _single_row(body, wire, limits)
            return None if row is None else (row, key)
        return (_rows(body, wire, limits), key) if 0 < count <= limits.batch_records_max else None
    except (InvalidRequestError, MsgspecError, RecursionError):
        return None


def _single_row(body: bytes, wire: _PlainBody | WriteBody, limits: Limits) -> Row | None:
    """Return the only record of a body that cannot be too deep, or None if there is more to check.

    Many writes have one record, and the work that is done once per column would be most of their cost.
    """
    if not isinstance(wire, _PlainBody) or wire.node is not None:
        return None
    if len(body) >= json_text.DEEP_BYTES and json_text.openers(body) > NESTING_MAX:
        return None
    (record,) = wire.records
    data = bytes(record.data)
    size = len(data)
    tag = None if record.tag is None else record.tag.encode()
    if b"\\" in data or size > limits.record_bytes_max or (tag is not None and len(tag) > limits.tag_bytes_max):
        return None
    return Row(data, tag, size)


def check_data(datas: Sequence[bytes], meta: Texts | None, limits: Limits) -> Texts:
    """Return a column of values that are compact JSON, with every limit of a record checked."""
    text, sizes = b"".join(datas), list(map(len, datas))
    offsets = offsets_of(sizes)
    if max(sizes) >= json_text.DEEP_BYTES:
        _check_values(text, offsets, 0, len(sizes))
    if json_text.has_spare_escapes(text):
        _check_sizes([size // _ESCAPE_BYTES_MAX for size in sizes], limits)
        datas = json_text.with_fewest_escapes(datas)
        text, sizes = b"".join(datas), list(map(len, datas))
        offsets = offsets_of(sizes)
    if meta is not None:
        sizes = list(map(add, sizes, map(sub, meta.offsets[1:], meta.offsets)))
    _check_sizes(sizes, limits)
    return Texts(text, offsets)


def _bytes_of(column: Texts | None, frame: int) -> int:
    """Return the minimum of bytes that a column took in the body."""
    if column is None:
        return 0
    rows = column.count if column.valid is None else int.from_bytes(column.valid, "little").bit_count()
    return len(column.data) + rows * frame


def _texts(values: Sequence[str | None], what: str, most: int) -> Texts | None:
    """Return a column of strings, or None if no row has one."""
    valid = None
    present = cast("Sequence[str]", values)
    try:
        text = "".join(present)
    except TypeError:  # one of them is None
        if values.count(None) == len(values):
            return None
        valid = bitmap([value is not None for value in values])
        present = [value or "" for value in values]
        text = "".join(present)
    if text.isascii():
        data, sizes = text.encode(), list(map(len, present))
    else:
        encoded = [value.encode() for value in present]
        data, sizes = b"".join(encoded), list(map(len, encoded))
    if max(sizes) > most:
        row, size = next((row, size) for row, size in enumerate(sizes) if size > most)
        raise InvalidRequestError(f"records[{row}].{what} is {size} bytes; the limit is {most}")
    return Texts.sized(data, sizes, valid)


def _nodes(own: Sequence[str | None], batch: str | None, most: int) -> tuple[Texts | None, bytes | None]:
    """Return the column of nodes and the node of the batch, at most one of them."""
    common = None if batch is None else batch.encode()
    if common is not None and len(common) > most:
        raise InvalidRequestError(f"node is {len(common)} bytes; the limit is {most}")
    if own.count(None) == len(own):
        return None, common
    if batch is not None:
        own = [batch if node is None else node for node in own]
    return _texts(own, "node", most), None


def meta_column(metas: Sequence[dict[str, str] | None], most: int) -> Texts | None:
    """Return the column of metas, encoded again: the last value of a repeated key is kept."""
    if metas.count(None) == len(metas):
        return None
    if max(map(len, filter(None, metas)), default=0) > META_KEYS_MAX:
        raise InvalidRequestError(f"a meta has too many keys; the limit is {META_KEYS_MAX}")
    encode = _META.encode
    column = Texts.of([None if meta is None else encode(meta) for meta in metas])
    longest = max(map(sub, column.offsets[1:], column.offsets))
    if longest > most:
        raise InvalidRequestError(f"a meta is {longest} bytes; the limit is {most}")
    return column


def check_key(key: str | None) -> str | None:
    """Return the idempotency key; None if it is empty. Raises InvalidRequestError."""
    if not key:
        return None
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidRequestError("idempotency_key is not UTF-8") from None
    if size > KEY_BYTES_MAX:
        raise InvalidRequestError(f"idempotency_key is {size} bytes; the limit is {KEY_BYTES_MAX}")
    return key


def _check_flood(body: bytes, limits: Limits) -> None:
    """Count the records of a body that may have far too many, before memory is used for them."""
    if body.count(b"{") > _FLOOD * limits.batch_records_max:
        _check_count(len(json_text.parse(_COUNT, body).records), limits)


def _check_count(count: int, limits: Limits) -> None:
    if count == 0:
        raise InvalidRequestError("records is empty")
    most = limits.batch_records_max
    if count > most:
        raise BatchTooLargeError(
            f"{count} records in one write; the limit is {most}", detail={"records": count, "max": most}
        )


def _check_sizes(sizes: Sequence[int], limits: Limits) -> None:
    most = limits.record_bytes_max
    if max(sizes) > most:
        row, size = next((row, size) for row, size in enumerate(sizes) if size > most)
        raise RecordTooLargeError(
            f"records[{row}] is {size} bytes; the limit is {most}", detail={"bytes": size, "max": most}
        )


def _check_values(text: bytes, offsets: Sequence[int], first: int, last: int) -> None:
    """Check the depth of these rows' values, in ever smaller parts until one has too few brackets to be too deep."""
    part = text[offsets[first] : offsets[last]]
    found = json_text.openers(part)
    if found <= NESTING_MAX:
        return
    if last - first == 1:
        json_text.check_depth(part, NESTING_MAX)
        return
    step = max(1, (last - first) * NESTING_MAX // (2 * found))
    for start in range(first, last, step):
        _check_values(text, offsets, start, min(start + step, last))


def _check_rest(body: bytes, datas: bytes, count: int) -> None:
    """Check the depth of unknown fields, in a body that has room for one that is too deep."""
    known = json_text.openers(datas) + count + json_text.openers(b'{"records":[')
    if json_text.openers(body) - known > NESTING_MAX:
        json_text.check_depth(body, NESTING_MAX + _AROUND_DATA)
