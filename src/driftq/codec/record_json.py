"""Records as the JSON text that readers get. The payload bytes are inserted as they were stored; nothing is parsed.

The columns, and the text between them, are placed into one list by extended slice assignment and joined. So the work
per record is a few C calls.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TypeVar, cast

from msgspec import json

from driftq.engine.read.topic_page import Page
from driftq.storage.blocks.block import RowSource

T = TypeVar("T")

_encode = json.encode


class Fields:
    """The optional fields that a reader wants, and the format."""

    __slots__ = ("arrow", "data", "meta", "tags")

    def __init__(self, *, tags: bool = False, meta: bool = True, data: bool = True, arrow: bool = False) -> None:
        self.tags = tags
        self.meta = meta
        self.data = data
        self.arrow = arrow
        """Whether the reader wants Arrow instead of JSON."""


def render_records(page: Page, fields: Fields) -> bytes:
    """Return the records of a page, with commas between them and without brackets."""
    return b",".join([_render(part.source, part.rows, fields) for part in page.slices])


def _render(source: RowSource, rows: Sequence[int], fields: Fields) -> bytes:
    first, last = rows[0], rows[-1] + 1
    count = len(rows)
    pick = None if count == last - first else itemgetter(*[row - first for row in rows])
    heads, digits = _seqs(source.first_seq + first, source.first_seq + last)
    columns: list[Sequence[bytes]] = [_picked(heads, pick, count), _picked(digits, pick, count)]
    text = b',"$ts":'  # the text before the next column, the same in every row
    times = source.times(first, last)
    if isinstance(times, int):
        text += b"%d" % times
    else:
        columns += [text] * count, _decimals(_picked(times, pick, count))
        text = b""
    for label, values, shared, quoted in _optional(source, first, last, fields):
        if values is None:
            if shared is not None:
                text += label + _quote(shared)
            continue
        values = _picked(values, pick, count)
        if None not in values and (source.plain or not quoted):
            mark = b'"' if quoted else b""
            columns += [text + label + mark] * count, cast("Sequence[bytes]", values)
            text = mark
        else:
            columns += [text] * count, _labelled(values, label, quoted=quoted)
            text = b""
    if fields.data:
        columns += [text + b',"data":'] * count, _picked(source.data(first, last), pick, count)
    else:
        columns.append([text] * count)
    width = len(columns)
    cells = [b"}"] * (width * count + 1)
    for place, column in enumerate(columns):
        cells[place:-1:width] = column
    cells[0] = cells[0].removeprefix(b"},")
    return b"".join(cells)


def _seqs(first: int, end: int) -> tuple[list[bytes], list[bytes]]:
    """Return two columns: the start of every record up to the last three digits of its seq, and these digits.

    The start includes the end of the previous record. Thousands of neighbours have the same start, and converting every
    number separately would be half of the work.
    """
    if end - first == 1:
        return [b'},{"$seq":%d' % first], [b""]
    heads: list[bytes] = []
    digits: list[bytes] = []
    while first < end:
        high, low = divmod(first, 1000)
        size = min(1000 - low, end - first)
        heads += [b'},{"$seq":%d' % high if high else b'},{"$seq":'] * size
        digits += (_LAST_DIGITS if high else _SMALL_NUMBERS)[low : low + size]
        first += size
    return heads, digits


_LAST_DIGITS = [b"%03d" % number for number in range(1000)]
_SMALL_NUMBERS = [b"%d" % number for number in range(1000)]


def _decimals(numbers: Sequence[int]) -> list[bytes]:
    return (b"%d " * len(numbers) % tuple(numbers)).split()


def _optional(
    source: RowSource, first: int, last: int, fields: Fields
) -> list[tuple[bytes, Sequence[bytes | None] | None, bytes | None, bool]]:
    """Return label, values, the value that all rows share, and whether it is a string, of each optional field."""
    found: list[tuple[bytes, Sequence[bytes | None] | None, bytes | None, bool]] = [
        (b',"$node":', source.nodes(first, last), source.batch_node, True)
    ]
    if fields.tags:
        found.append((b',"$tag":', source.tags(first, last), None, True))
    if fields.meta:
        found.append((b',"meta":', source.metas(first, last), None, False))
    return found


def _labelled(values: Sequence[bytes | None], label: bytes, *, quoted: bool) -> list[bytes]:
    """Return each value with its label before it, or b"" for a row without a value."""
    if quoted:
        return [b"" if value is None else label + _quote(value) for value in values]
    return [b"" if value is None else label + value for value in values]


def _quote(text: bytes) -> bytes:
    return _encode(text.decode())


def _picked(values: Sequence[T], pick: "Callable[[Sequence[T]], T | tuple[T, ...]] | None", count: int) -> Sequence[T]:
    if pick is None:
        return values
    found = pick(values)
    return found if count > 1 else (found,)  # type: ignore[return-value]
