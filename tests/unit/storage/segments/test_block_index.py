"""The index of a segment: where a seq is, and the `.idx` file."""

from hypothesis import given
from hypothesis import strategies as st

from driftq.storage.segments.block_index import BlockIndex, decode_index, encode_index


@st.composite
def indexes(draw: st.DrawFn) -> BlockIndex:
    """Blocks in order, with gaps between some."""
    index = BlockIndex()
    seq, offset = draw(st.integers(1, 1 << 40)), 0
    for _ in range(draw(st.integers(0, 8))):
        seq += draw(st.sampled_from((0, 0, 0, 1, 70_000)))
        count, length = draw(st.integers(1, 2000)), 8 * draw(st.integers(10, 5000))
        index.add(
            first_seq=seq, count=count, offset=offset, length=length, first_ts=seq, last_ts=seq + 5, payload=length // 2
        )
        seq += count
        offset += length
    return index


@given(indexes(), st.data())
def test_a_seq_is_in_the_block_that_holds_it_or_before_the_next(index: BlockIndex, data: st.DataObject) -> None:
    last = index.end_seq(len(index) - 1) if len(index) else 1
    seq = data.draw(st.integers(0, last + 3))
    block = index.at_or_after(seq)
    holding = [n for n in range(len(index)) if index.first_seq(n) <= seq < index.end_seq(n)]
    behind = [n for n in range(len(index)) if index.first_seq(n) > seq]
    assert block == (holding or behind or [len(index)])[0]


@given(indexes())
def test_the_file_reads_back(index: BlockIndex) -> None:
    found = decode_index(encode_index(index))
    assert found is not None
    assert (len(found), found.cells) == (len(index), index.cells)


@given(indexes(), st.data())
def test_no_damaged_file_is_believed(index: BlockIndex, data: st.DataObject) -> None:
    content = bytearray(encode_index(index))
    if data.draw(st.booleans()):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        assert decode_index(bytes(content)) is None
    else:
        assert decode_index(bytes(content[: data.draw(st.integers(0, len(content) - 1))])) is None


def test_an_index_knows_its_blocks() -> None:
    index = BlockIndex()
    index.add(first_seq=5, count=3, offset=0, length=80, first_ts=1, last_ts=2, payload=9)
    index.add(first_seq=10, count=2, offset=80, length=64, first_ts=3, last_ts=4, payload=7)
    assert (index.first_seq(1), index.count(1), index.end_seq(1), index.place(1)) == (10, 2, 12, (80, 64))
    assert (index.first_ts(1), index.last_ts(1), index.payload(1)) == (3, 4, 7)
    assert len(BlockIndex(index.cells[: len(index.head(1)) // 8])) == 1
