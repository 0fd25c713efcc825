"""Rows to test with: hypothesis strategies for writes of every shape, and plain builders for single cases."""

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from hypothesis import strategies as st

from driftq.storage.blocks.block import RowSource, encode_block
from driftq.storage.blocks.rows import Rows, Texts

# Quotes, escapes, control characters, zero bytes, several bytes per character, and nothing at all.
texts = st.text(st.sampled_from('ab"\\\n\0é€😀'), max_size=6).map(str.encode)
payloads = st.one_of(texts, st.binary(max_size=40).map(lambda value: b'{"v":"' + value.hex().encode() + b'"}'))
seqs = st.integers(1, (1 << 63) - 100_000)
times = st.integers(0, 1 << 45)


class Record(NamedTuple):
    """What a reader gets of one row."""

    seq: int
    ts: int
    tag: bytes | None
    node: bytes | None
    meta: bytes | None
    data: bytes


def column(values: Sequence[bytes | None] | None) -> Texts | None:
    """A column, or None where no row has a value."""
    return None if values is None else Texts.of(values)


def make_rows(
    data: Sequence[bytes],
    *,
    tag: Sequence[bytes | None] | None = None,
    node: Sequence[bytes | None] | None = None,
    meta: Sequence[bytes | None] | None = None,
    batch_node: bytes | None = None,
) -> Rows:
    """Rows of plain lists."""
    return Rows(Texts.of(data), tag=column(tag), node=column(node), meta=column(meta), batch_node=batch_node)


@st.composite
def rows(draw: st.DrawFn, *, rows_max: int = 40) -> Rows:
    """A write, with every combination of columns."""
    count = draw(st.one_of(st.integers(1, 3), st.integers(1, rows_max)))

    def optional(values: st.SearchStrategy[bytes]) -> list[bytes | None] | None:
        if not draw(st.booleans()):
            return None
        one = values if draw(st.booleans()) else st.none() | values
        return draw(st.lists(one, min_size=count, max_size=count))

    batch_node = draw(st.none() | texts)
    return make_rows(
        draw(st.lists(payloads, min_size=count, max_size=count)),
        tag=optional(texts),
        node=optional(texts) if batch_node is None else None,
        meta=optional(payloads),
        batch_node=batch_node,
    )


@st.composite
def frames(draw: st.DrawFn, *, first_seq: int | None = None, first_ts: int | None = None, rows_max: int = 40) -> bytes:
    """The Append frame of a write. Times never go down."""
    written = draw(rows(rows_max=rows_max))
    first_ts = draw(times) if first_ts is None else first_ts
    own_times = None
    if draw(st.booleans()):
        steps = draw(st.lists(st.integers(0, 3), min_size=written.count, max_size=written.count))
        steps[0] = 0
        own_times = array("q", [first_ts + sum(steps[: row + 1]) for row in range(written.count)])
    return encode_block(
        written,
        topic_id=draw(st.integers(0, (1 << 64) - 1)),
        first_seq=draw(seqs) if first_seq is None else first_seq,
        ts=first_ts,
        synced_to=draw(st.integers(0, (1 << 64) - 1)),
        times=own_times,
        key=draw(st.none() | texts),
        writer=draw(st.none() | texts),
        flags=draw(st.just(b"") | st.binary(min_size=written.count, max_size=written.count)),
    )


def records(source: RowSource, first: int = 0, last: int | None = None) -> list[Record]:
    """The rows of a source one by one, as a reader gets them."""
    last = source.count if last is None else last
    count = last - first
    none: list[bytes | None] = [None] * count
    at = source.times(first, last)
    nodes = source.nodes(first, last)
    if nodes is None and source.batch_node is not None:
        nodes = [source.batch_node] * count
    return [
        Record(*row)
        for row in zip(
            range(source.first_seq + first, source.first_seq + last),
            [at] * count if isinstance(at, int) else at,
            source.tags(first, last) or none,
            nodes or none,
            source.metas(first, last) or none,
            source.data(first, last),
            strict=True,
        )
    ]


def records_of(written: Rows, *, first_seq: int, ts: int) -> list[Record]:
    """What a reader should get of a write."""

    def value(texts: Texts | None, row: int) -> bytes | None:
        return None if texts is None else texts[row]

    return [
        Record(
            first_seq + row,
            ts,
            value(written.tag, row),
            written.batch_node if written.node is None else written.node[row],
            value(written.meta, row),
            written.data[row] or b"",
        )
        for row in range(written.count)
    ]


def weights_fit(source: RowSource) -> bool:
    """Do the running totals say how long each payload is, and do parts of them agree with the whole?"""
    whole = source.weights(0, source.count)
    sizes = [len(record.data) + len(record.meta or b"") for record in records(source)]
    parts = all(
        [b - a for a, b in pairwise(source.weights(first, last))] == sizes[first:last]
        and source.weight(first, last) == sum(sizes[first:last])
        for first in range(source.count)
        for last in range(first + 1, source.count + 1)
    )
    return [b - a for a, b in pairwise(whole)] == sizes and parts
