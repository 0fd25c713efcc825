"""Jobs as the JSON text that workers get: the payload bytes are those that were stored, spliced between the lease's."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import json

from driftq.engine.diff import Slice
from driftq.storage.block import RowSource


class Handed(NamedTuple):
    """What one claimer was given: its lease, and how often those of its jobs were delivered that were before."""

    number: int
    deadline: int
    again: Mapping[int, int]


def render_jobs(slices: Sequence[Slice], handed: Handed) -> list[bytes]:
    """One text per job, in the order of the rows."""
    jobs: list[bytes] = []
    for source, rows in slices:
        jobs += _render(source, rows, handed)
    return jobs


def _render(source: RowSource, rows: Sequence[int], handed: Handed) -> list[bytes]:
    first, last = rows[0], rows[-1] + 1
    picks = None if len(rows) == last - first else [row - first for row in rows]
    seqs: Sequence[int] = [source.first_seq + row for row in rows]
    stamps = source.times(first, last)
    times = [stamps] * len(rows) if isinstance(stamps, int) else _picked(stamps, picks)
    again = handed.again
    if again:
        counts: Sequence[int] = [again.get(seq, 1) for seq in seqs]
    else:
        counts = [1] * len(seqs)
    data = _picked(source.data(first, last), picks)
    template = b'{"$seq":%%d,"lease_id":"lease_%x%%016x","deadline":%d,"$ts":%%d%%b,"deliveries":%%d,"data":%%b%%b}' % (
        handed.number,
        handed.deadline,
    )
    tags = _labelled(source.tags(first, last), picks, b',"$tag":', len(seqs), quoted=True)
    metas = _labelled(source.metas(first, last), picks, b',"meta":', len(seqs), quoted=False)
    return [template % cells for cells in zip(seqs, seqs, times, tags, counts, data, metas, strict=True)]


def _picked(values: list, picks: list[int] | None) -> list:  # type: ignore[type-arg]
    return values if picks is None else [values[place] for place in picks]


def _labelled(
    values: list[bytes | None] | None, picks: list[int] | None, label: bytes, count: int, *, quoted: bool
) -> list[bytes]:
    """Each value with its label before it, or nothing where there is none."""
    if values is None:
        return [b""] * count
    if quoted:
        return [b"" if value is None else label + json.encode(value.decode()) for value in _picked(values, picks)]
    return [b"" if value is None else label + value for value in _picked(values, picks)]
