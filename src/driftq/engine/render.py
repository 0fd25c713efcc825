"""Records as the JSON text that readers get. The payload bytes are those that were stored; nothing is parsed.

Columns are sliced, laid into one list by extended slice assignment, and formatted by one template per run of rows, so
the work per record is a few C calls.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TypeVar

from msgspec import json

from driftq.engine.diff import Page
from driftq.storage.block import RowSource

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
    seqs: Sequence[int] = range(source.first_seq + first, source.first_seq + last)
    columns: list[Sequence[object]] = [_picked(seqs, pick, count)]
    template = b'{"$seq":%d'
    times = source.times(first, last)
    if isinstance(times, int):
        template += b',"$ts":%d' % times
    else:
        template += b',"$ts":%d'
        columns.append(_picked(times, pick, count))
    for label, values, shared, quoted in _optional(source, first, last, fields):
        if values is None:
            if shared is not None:
                template += (label + _quote(shared)).replace(b"%", b"%%")
            continue
        values = _picked(values, pick, count)
        if None not in values and (source.plain or not quoted):
            template += label + (b'"%b"' if quoted else b"%b")
            columns.append(values)
        else:
            template += b"%b"
            columns.append(_labelled(values, label, quoted=quoted))
    if fields.data:
        template += b',"data":%b'
        columns.append(_picked(source.data(first, last), pick, count))
    template += b"},"
    width = len(columns)
    cells: list[object] = [None] * (width * count)
    for place, column in enumerate(columns):
        cells[place::width] = column
    return (template * count)[:-1] % tuple(cells)


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
