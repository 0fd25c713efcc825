"""The records a caller writes, as the body of a write: values, or lines of JSON that are not decoded one by one."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import MsgspecError, Raw, Struct
from msgspec.json import Decoder, encode

from driftq.client.transport.calls import present
from driftq.model.topic_config import TopicConfig

LINES_MAX = 10_000
"""Records of one write, unless the server is told otherwise."""

_VALUES = Decoder(list[Raw])
_VALUE = Decoder(Raw)


class NewRecord(Struct, frozen=True, omit_defaults=True):
    """A record to be."""

    data: Any
    tag: str | None = None
    node: str | None = None
    meta: Mapping[str, str] | None = None


class _Write(Struct, omit_defaults=True):
    """The members of a write."""

    records: list[NewRecord | Mapping[str, Any]]
    idempotency_key: str | None = None
    node: str | None = None
    create: bool | None = None
    config: TopicConfig | None = None
    disable_backpressure: bool | None = None


def write_body(records: Iterable[NewRecord | Mapping[str, Any]], **fields: Any) -> bytes:
    """A write of these records; a mapping has the members of a `NewRecord`."""
    return encode(_Write(list(records), **fields))


def encoded_body(records: list[bytes], **fields: Any) -> bytes:
    """Return a write of records that are JSON already."""
    rest = encode(present(fields))[1:]
    return b'{"records":[' + b",".join(records) + (b"]" if rest == b"}" else b"],") + rest


class JsonLinesReader:
    """Lines of JSON, each the data of one record, checked and ready to be sent.

    The lines are checked as one array, at the speed of the decoder, and spliced. Raises ValueError, with the number of
    the line that is not JSON; blank lines do not count as records.
    """

    __slots__ = ("records",)

    def __init__(self, lines: bytes, *, tag: str | None = None) -> None:
        ends = b"}" if tag is None else b',"tag":' + encode(tag) + b"}"
        self.records = b'{"data":' + (ends + b',{"data":').join(_values(lines)) + ends
        """As they are in a write, with commas between them."""


def lines_body(lines: bytes, *, tag: str | None = None, **fields: Any) -> bytes:
    """Return a write with one record for each line. Raises ValueError as `JsonLinesReader`."""
    return encoded_body([JsonLinesReader(lines, tag=tag).records], **fields)


def _values(lines: bytes) -> list[bytes]:
    rows = lines.removesuffix(b"\n").split(b"\n")
    try:
        values = _VALUES.decode(b"[" + b",".join(rows) + b"]")
    except (MsgspecError, RecursionError):
        values = []
    # As long as its row: so each value is its row, and none runs over the end of one.
    if list(map(len, values)) == list(map(len, rows)):
        return rows
    rows = [row.strip() for row in rows]
    for number, row in enumerate(rows, 1):
        try:
            if row:
                _VALUE.decode(row)
        except (MsgspecError, RecursionError) as error:
            raise ValueError(f"line {number} is no JSON: {error}") from None
    if not any(rows):
        raise ValueError("there is no line to write")
    return [row for row in rows if row]


def line_groups(chunks: Iterable[bytes], lines_max: int) -> Iterator[bytes]:
    """The same lines in groups of at most so many, whatever the pieces they come in."""
    rest = b""
    for chunk in chunks:
        text = rest + chunk
        begin, lines = 0, text.count(b"\n")
        while lines >= lines_max:
            end = _behind(text, begin, lines_max)
            yield text[begin:end]
            begin, lines = end, lines - lines_max
        rest = text[begin:]
    if rest.strip():
        yield rest


def _behind(text: bytes, begin: int, lines: int) -> int:
    """The place behind so many lines."""
    for _ in range(lines):
        begin = text.index(b"\n", begin) + 1
    return begin
