"""The open block answers every question as the block that it becomes."""

from hypothesis import given
from hypothesis import strategies as st

from driftq.storage.blocks.block import Block, encode_block
from driftq.storage.blocks.frame import Frame, read_frame
from driftq.storage.blocks.frame_columns import read_one
from driftq.storage.blocks.open_block import OpenBlock
from driftq.storage.blocks.rows import Rows
from tests.unit.storage import samples

writes = st.lists(st.tuples(samples.rows(rows_max=7), st.integers(0, 2)), min_size=1, max_size=6)


def gathered(
    written: list[tuple[Rows, int]], *, first_seq: int = 40, ts: int = 1000
) -> tuple[OpenBlock, list[samples.Record]]:
    """An open block of these writes, each so much later than the one before, and the records in it."""
    opened = OpenBlock(first_seq)
    expected: list[samples.Record] = []
    for rows, later in written:
        ts += later
        expected += samples.records_of(rows, first_seq=first_seq + opened.count, ts=ts)
        opened.extend(rows, ts)
    return opened, expected


@given(writes)
def test_it_holds_the_rows_of_every_write(written: list[tuple[Rows, int]]) -> None:
    opened, expected = gathered(written)
    assert samples.records(opened) == expected
    assert (opened.first_seq, opened.count) == (40, len(expected))
    assert (opened.ts, opened.last_ts) == (expected[0].ts, expected[-1].ts)
    assert opened.payload_bytes == sum(rows.payload_bytes for rows, _ in written)
    assert samples.weights_fit(opened)


@given(writes, st.binary(min_size=42, max_size=42))
def test_the_block_it_becomes_answers_alike(written: list[tuple[Rows, int]], flags: bytes) -> None:
    opened, expected = gathered(written)
    frame = opened.encode(6, flags[: opened.count])
    header = read_frame(frame, 0, len(frame))
    assert isinstance(header, Frame)
    block = Block.read(frame, header)
    assert isinstance(block, Block)
    assert samples.records(block) == expected
    assert (block.first_seq, block.count, block.ts) == (opened.first_seq, opened.count, opened.ts)
    assert (header.topic_id, block.flags) == (6, flags[: opened.count])
    assert (block.plain, block.batch_node, block.payload_bytes) == (
        opened.plain,
        opened.batch_node,
        opened.payload_bytes,
    )
    assert block.tag_bytes() == opened.tag_bytes()
    for first in range(opened.count + 1):
        for last in range(first, opened.count + 1):
            assert block.data(first, last) == opened.data(first, last)
            assert block.tags(first, last) == opened.tags(first, last)
            assert block.nodes(first, last) == opened.nodes(first, last)
            assert block.metas(first, last) == opened.metas(first, last)
            assert list(block.weights(first, last)) == list(opened.weights(first, last))
            if first < last:
                assert block.times(first, last) == opened.times(first, last)


@given(writes)
def test_its_rows_as_a_value_are_its_rows(written: list[tuple[Rows, int]]) -> None:
    opened, expected = gathered(written)
    found = samples.records_of(opened.rows(), first_seq=40, ts=0)
    assert found == [record._replace(ts=0) for record in expected]


@given(writes, st.lists(st.tuples(samples.payloads, st.none() | samples.texts), min_size=1, max_size=5), writes)
def test_appending_one_row_is_extending_by_a_write_of_one(
    before: list[tuple[Rows, int]], ones: list[tuple[bytes, bytes | None]], behind: list[tuple[Rows, int]]
) -> None:
    short, _ = gathered(before)
    long, _ = gathered(before)
    for data, tag in ones:
        rows = samples.make_rows([data], tag=None if tag is None else [tag])
        frame = encode_block(rows, topic_id=1, first_seq=1, ts=5000)
        header = read_frame(frame, 0, len(frame))
        assert isinstance(header, Frame)
        one = read_one(frame, header)
        assert one == (data, tag)
        short.append(data, tag, 5000)
        long.extend(rows, 5000)
    for rows, _ in behind:
        short.extend(rows, 6000)
        long.extend(rows, 6000)
    assert short.encode(1) == long.encode(1)
    assert (short.plain, short.payload_bytes) == (long.plain, long.payload_bytes)


def test_a_block_whose_rows_share_their_time_has_no_column_of_times() -> None:
    opened = OpenBlock(1)
    opened.extend(samples.make_rows([b"1", b"2"]), 7)
    same = len(opened.encode(1))
    opened.extend(samples.make_rows([b"3"]), 7)
    assert Block.of(opened.encode(1)).times(0, 3) == 7
    opened.extend(samples.make_rows([b"4"]), 8)
    assert Block.of(opened.encode(1)).times(0, 4) == [7, 7, 7, 8]
    assert len(opened.encode(1)) - same >= 4 * 8


def test_a_column_that_begins_late_is_absent_before() -> None:
    opened = OpenBlock(1)
    opened.extend(samples.make_rows([b"1", b"2"]), 1)
    assert (opened.tags(0, 2), opened.metas(0, 2), opened.nodes(0, 2)) == (None, None, None)
    opened.extend(samples.make_rows([b"3"], tag=[b""], meta=[b"{}"], batch_node=b"n"), 1)
    opened.extend(samples.make_rows([b"4"]), 1)
    assert opened.tags(0, 4) == [None, None, b"", None]
    assert opened.metas(1, 4) == [None, b"{}", None]
    assert opened.nodes(2, 4) == [b"n", None]
