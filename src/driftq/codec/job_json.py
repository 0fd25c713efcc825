"""Jobs as the JSON text that workers get. The payload bytes are inserted as they were stored; nothing is parsed."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from msgspec import json

from driftq.engine.read.topic_page import Slice
from driftq.storage.blocks.block import RowSource

T = TypeVar("T")


class ClaimLease(NamedTuple):
    """The lease of one claim, and the number of deliveries of those jobs that were delivered before."""

    number: int
    deadline: int
    again: Mapping[int, int]


def render_jobs(slices: Sequence[Slice], handed: ClaimLease) -> list[bytes]:
    """Return one JSON text per job, in the order of the rows."""
    jobs: list[bytes] = []
    for source, rows in slices:
        jobs += _render(source, rows, handed)
    return jobs


def _render(source: RowSource, rows: Sequence[int], handed: ClaimLease) -> list[bytes]:
    """Return the text of each job. Values that all rows share are in the template, the others in columns."""
    first, last = rows[0], rows[-1] + 1
    picks = None if len(rows) == last - first else [row - first for row in rows]
    seqs = [source.first_seq + row for row in rows]
    template = b'{"$seq":%%d,"lease_id":"lease_%x%%016x","deadline":%d' % (handed.number, handed.deadline)
    columns: list[Sequence[object]] = [seqs, seqs]
    times = source.times(first, last)
    if isinstance(times, int):
        template += b',"$ts":%d' % times
    else:
        template += b',"$ts":%d'
        columns.append(_picked(times, picks))
    tags = source.tags(first, last)
    if tags is not None:
        template += b"%b"
        columns.append([b"" if tag is None else b',"$tag":' + _quote(tag) for tag in _picked(tags, picks)])
    again = handed.again
    if again:
        template += b',"deliveries":%d'
        columns.append([again.get(seq, 1) for seq in seqs])
    else:
        template += b',"deliveries":1'
    template += b',"data":%b'
    columns.append(_picked(source.data(first, last), picks))
    metas = source.metas(first, last)
    if metas is not None:
        template += b"%b"
        columns.append([b"" if meta is None else b',"meta":' + meta for meta in _picked(metas, picks)])
    template += b"}"
    return [template % cells for cells in zip(*columns, strict=True)]


def _quote(text: bytes) -> bytes:
    return json.encode(text.decode())


def _picked(values: Sequence[T], picks: list[int] | None) -> Sequence[T]:
    return values if picks is None else [values[place] for place in picks]
