"""Records as the JSON text that readers get. The payload bytes are those that were stored; nothing is parsed.

Columns are sliced, laid into one list by extended slice assignment together with the text between them, and joined: the
work per record is a few C calls.
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
    """Which fields a reader wants besides the seq and the time, and as what."""

    __slots__ = ("arrow", "data", "meta", "tags")

    def __init__(self, *, tags: bool = False, meta: bool = True, data: bool = True, arrow: bool = False) -> None:
        self.tags = tags
        self.meta = meta
        self.data = data
        self.arrow = arrow
        """As Arrow, not as JSON?"""


def render_records(page: Page, fields: Fields) -> bytes:
    """A page's records, with commas between them and no brackets."""
    return b",".join([_render(part.source, part.rows, fields) for part in page.slices])


def _render(source: RowSource, rows: Sequence[int], fields: Fields) -> bytes:
    first, last = rows[0], rows[-1] + 1
    count = len(rows)
    pick = None if count == last - first else itemgetter(*[row - first for row in rows])
    heads, digits = _seqs(source.first_seq + first, source.first_seq + last)
    columns: list[Sequence[bytes]] = [_picked(heads, pick, count), _picked(digits, pick, count)]
    text = b',"$ts":'  # what stands before the next column, the same in every row
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
    """The beginning of every record, behind the end of the one before it, up to its seq's last three digits; and these.

    Thousands of neighbours share all but those, and to put numbers into decimals one by one is half of the work.
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
    """Label, values, the value all rows share, and whether it is a string, of each field that may be absent."""
    found: list[tuple[bytes, Sequence[bytes | None] | None, bytes | None, bool]] = [
        (b',"$node":', source.nodes(first, last), source.batch_node, True)
    ]
    if fields.tags:
        found.append((b',"$tag":', source.tags(first, last), None, True))
    if fields.meta:
        found.append((b',"meta":', source.metas(first, last), None, False))
    return found


def _labelled(values: Sequence[bytes | None], label: bytes, *, quoted: bool) -> list[bytes]:
    """Each value with its label before it, or nothing where there is none."""
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
