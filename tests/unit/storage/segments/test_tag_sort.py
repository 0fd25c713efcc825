"""Sorting by Arrow makes the same index as sorting by Python."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftq.storage.blocks.block import Block, encode_block
from driftq.storage.segments.tag_index import TagIndex, tag_rows
from driftq.storage.segments.tag_sort import index_blocks
from tests.unit.storage import samples

names = st.lists(
    st.sampled_from([b"", b"\0", b"a", b"b", "é".encode(), b"\xf0\x9f\x98\x80", b"common/12345678"]), max_size=4
)
columns = st.lists(st.lists(st.none() | names.map(b"".join), min_size=1, max_size=20), min_size=1, max_size=4)


@given(columns, st.sampled_from([b"", b"user/"]), st.sampled_from([0, 0, 3]), st.booleans())
def test_the_index_is_the_same_by_either_way(
    blocks: list[list[bytes | None]], front: bytes, hole: int, absent: bool
) -> None:
    made = []
    seq = 100
    for tags in blocks:
        given_tags = [None if tag is None else front + tag for tag in tags]
        if not absent:
            given_tags = [tag or front for tag in given_tags]
        rows = samples.make_rows([b"1"] * len(tags), tag=None if set(given_tags) == {None} else given_tags)
        made.append(Block.of(encode_block(rows, topic_id=1, first_seq=seq, ts=1)))
        seq += len(tags) + hole
    assert index_blocks(made, 100).encode() == TagIndex.build(tag_rows(made, 100)).encode()


def test_rows_above_two_bytes() -> None:
    count = 70_000
    rows = samples.make_rows([b"1"] * count, tag=[b"%05d" % (row * 7919 % count) for row in range(count)])
    made = [Block.of(encode_block(rows, topic_id=1, first_seq=1, ts=1))]
    assert index_blocks(made, 1).encode() == TagIndex.build(tag_rows(made, 1)).encode()


def test_nobody_waits_for_arrow_who_is_in_no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pyarrow.compute", raising=False)
    made = [Block.of(encode_block(samples.make_rows([b"1", b"2"], tag=[b"b", b"a"]), topic_id=1, first_seq=1, ts=1))]
    assert index_blocks(made, 1, hurry=False).encode() == index_blocks(made, 1).encode()
    monkeypatch.delitem(sys.modules, "pyarrow.compute", raising=False)
    index_blocks(made, 1, hurry=False)
    assert "pyarrow.compute" not in sys.modules
