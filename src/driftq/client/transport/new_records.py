"""Makes the body of a write from records: from values, or from lines of JSON that are checked but not decoded."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import MsgspecError, Raw, Struct
from msgspec.json import Decoder, encode

from driftq.client.transport.calls import present
from driftq.model.topic_config import TopicConfig

LINES_MAX = 10_000
"""The default limit of a server for the records of one write."""

_VALUES = Decoder(list[Raw])
_VALUE = Decoder(Raw)


class NewRecord(Struct, frozen=True, omit_defaults=True):
    """A record to write; `data` is any JSON value."""

    data: Any
    tag: str | None = None
    node: str | None = None
    meta: Mapping[str, str] | None = None


class _Write(Struct, omit_defaults=True):
    """The JSON members of a write request."""

    records: list[NewRecord | Mapping[str, Any]]
    idempotency_key: str | None = None
    node: str | None = None
    create: bool | None = None
    config: TopicConfig | None = None
    disable_backpressure: bool | None = None


def write_body(records: Iterable[NewRecord | Mapping[str, Any]], **fields: Any) -> bytes:
    """Return the body of a write of these records; a mapping has the fields of a `NewRecord`."""
    return encode(_Write(list(records), **fields))


def encoded_body(records: list[bytes], **fields: Any) -> bytes:
    """Return the body of a write of records that are already encoded as JSON."""
    rest = encode(present(fields))[1:]
    return b'{"records":[' + b",".join(records) + (b"]" if rest == b"}" else b"],") + rest


class JsonLinesReader:
    """Lines of JSON, each the data of one record, checked and ready to be sent.

    All lines are checked with one call of the decoder and copied as they are. Blank lines are not records. Raise
    ValueError with the number of a line that is not JSON.
    """

    __slots__ = ("records",)

    def __init__(self, lines: bytes, *, tag: str | None = None) -> None:
        ends = b"}" if tag is None else b',"tag":' + encode(tag) + b"}"
        self.records = b'{"data":' + (ends + b',{"data":').join(_values(lines)) + ends
        """The records in the form of a write, with commas between them."""


def lines_body(lines: bytes, *, tag: str | None = None, **fields: Any) -> bytes:
    """Return the body of a write with one record for each line. Raise ValueError as `JsonLinesReader` does."""
    return encoded_body([JsonLinesReader(lines, tag=tag).records], **fields)


def _values(lines: bytes) -> list[bytes]:
    rows = lines.removesuffix(b"\n").split(b"\n")
    try:
        values = _VALUES.decode(b"[" + b",".join(rows) + b"]")
    except (MsgspecError, RecursionError):
        values = []
    # Each value is as long as its line, so no value spans two lines and no line has two values.
    if list(map(len, values)) == list(map(len, rows)):
        return rows
    rows = [row.strip() for row in rows]
    for number, row in enumerate(rows, 1):
        try:
            if row:
                _VALUE.decode(row)
        except (MsgspecError, RecursionError) as error:
            raise ValueError(f"line {number} is not JSON: {error}") from None
    if not any(rows):
        raise ValueError("there are no lines to write")
    return [row for row in rows if row]


def line_groups(chunks: Iterable[bytes], lines_max: int) -> Iterator[bytes]:
    """Yield the lines of `chunks`, which may be cut anywhere, in groups of at most `lines_max`."""
    rest = b""
    for chunk in chunks:
        text = rest + chunk
        begin, lines = 0, text.count(b"\n")
        while lines >= lines_max:
            end = _after_lines(text, begin, lines_max)
            yield text[begin:end]
            begin, lines = end, lines - lines_max
        rest = text[begin:]
    if rest.strip():
        yield rest


def _after_lines(text: bytes, begin: int, lines: int) -> int:
    """Return the position after `lines` more lines."""
    for _ in range(lines):
        begin = text.index(b"\n", begin) + 1
    return begin
