"""Blocks: what is wrapped is what was encoded; columns that make no sense are refused, whatever the checksums say."""

import random
from array import array
from itertools import pairwise
from struct import pack_into, unpack_from

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from driftq.storage.blocks.block import Block, all_set, encode_block, masked, slices
from driftq.storage.blocks.frame import HEAD_BYTES, Bad, Bits, Frame, Kind, read_frame
from driftq.storage.blocks.frame_columns import ORDER, find_columns, read_one
from driftq.storage.blocks.rows import Rows, Texts, bitmap
from tests.unit.storage import samples


def wrapped(buffer: bytes, start: int = 0, end: int | None = None) -> Block:
    """The block of a frame that must be good."""
    header = read_frame(buffer, start, len(buffer) if end is None else end)
    assert isinstance(header, Frame), header
    block = Block.read(buffer, header)
    assert isinstance(block, Block), block
    return block


@given(
    samples.rows(),
    samples.seqs,
    samples.times,
    st.none() | samples.texts,
    st.none() | samples.texts,
    st.booleans(),
)
def test_every_combination_of_columns_round_trips(
    written: Rows, seq: int, ts: int, key: bytes | None, writer: bytes | None, own_times: bool
) -> None:
    times = array("q", range(ts, ts + written.count)) if own_times else None
    flags = bytes(range(written.count))
    block = wrapped(
        encode_block(
            written, topic_id=5, first_seq=seq, ts=ts, times=times, key=key, writer=writer, flags=flags, synced_to=8
        )
    )
    expected = samples.records_of(written, first_seq=seq, ts=ts)
    if own_times:
        expected = [record._replace(ts=ts + row) for row, record in enumerate(expected)]
    assert samples.records(block) == expected
    assert (block.first_seq, block.last_seq, block.count, block.ts) == (seq, expected[-1].seq, len(expected), ts)
    assert (block.key, block.writer, block.flags, block.batch_node) == (key, writer, flags, written.batch_node)
    assert block.payload_bytes == written.payload_bytes
    assert block.tag_bytes() == b"".join(record.tag or b"" for record in expected)
    assert samples.weights_fit(block)
    columns = [written.tag, written.node, None if written.batch_node is None else Texts.of([written.batch_node])]
    assert block.plain == all(column is None or column.plain() for column in columns)


@given(samples.frames(rows_max=12))
def test_a_range_of_rows_is_that_part_of_all_rows(encoded: bytes) -> None:
    block = wrapped(encoded)
    everything = samples.records(block)
    for first in range(block.count + 1):
        for last in range(first, block.count + 1):
            assert samples.records(block, first, last) == everything[first:last]


@given(samples.frames())
def test_what_was_just_encoded_is_wrapped_as_if_it_had_been_read(encoded: bytes) -> None:
    trusted, verified = Block.of(encoded), wrapped(encoded)
    for name in Block.__slots__:
        assert getattr(trusted, name) == getattr(verified, name)


@given(samples.frames())
def test_rows_encode_to_the_same_block_again(encoded: bytes) -> None:
    block = wrapped(encoded)
    rows = block.rows()
    times = block.times(0, block.count)
    again = Block.of(
        encode_block(
            rows,
            topic_id=1,
            first_seq=block.first_seq,
            ts=block.ts,
            times=None if isinstance(times, int) else array("q", times),
        )
    )
    assert samples.records(again) == samples.records(block)
    assert (again.plain, again.payload_bytes) == (block.plain, rows.payload_bytes)


@given(samples.frames())
def test_frame_and_columns_are_aligned_to_eight(encoded: bytes) -> None:
    block = wrapped(encoded)
    assert len(encoded) % 8 == 0
    spans = [block.span(bit) for bit in (*ORDER, 0) if not bit or block.bits & bit]
    assert all(start % 8 == 0 for start, _ in spans)
    assert spans[0][0] >= HEAD_BYTES + 4 * len(spans)
    assert all(start + size <= following for (start, size), (following, _) in pairwise(spans))


@given(samples.frames(), st.integers(0, 5), st.binary(max_size=20))
def test_a_block_is_read_out_of_the_middle_of_a_file(encoded: bytes, before: int, behind: bytes) -> None:
    buffer = bytes(8 * before) + encoded + behind
    block = wrapped(buffer, 8 * before)
    assert block.frame == encoded
    assert samples.records(block) == samples.records(Block.of(encoded))


@given(samples.frames())
def test_one_record_is_read_the_same_by_the_short_cut(encoded: bytes) -> None:
    buffer = bytes(8) + encoded + bytes(8)
    header = read_frame(buffer, 8, len(buffer))
    assert isinstance(header, Frame)
    block = wrapped(encoded)
    short = header.count == 1 and not block.bits & ~(Bits.TAG | Bits.PLAIN)
    record = samples.records(block)[0]
    assert read_one(buffer, header) == ((record.data, record.tag) if short else None)


def test_times_are_one_number_where_they_are_the_same() -> None:
    rows = samples.make_rows([b"1"] * 4)
    block = Block.of(encode_block(rows, topic_id=1, first_seq=1, ts=5, times=array("q", (5, 6, 6, 6))))
    assert block.times(0, 4) == [5, 6, 6, 6]
    assert block.times(1, 4) == 6
    assert block.times(0, 1) == 5
    assert block.times(4, 4) == []


def test_a_row_has_one_node() -> None:
    rows = samples.make_rows([b"1"], node=[b"a"], batch_node=b"b")
    with pytest.raises(AssertionError):
        encode_block(rows, topic_id=1, first_seq=1, ts=1)


def test_flags_are_a_byte_per_record() -> None:
    with pytest.raises(AssertionError):
        encode_block(samples.make_rows([b"1", b"2"]), topic_id=1, first_seq=1, ts=1, flags=b"\0")


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.data())
def test_masking_puts_none_where_the_bitmap_says_so(present: list[bool], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(present)))
    last = data.draw(st.integers(first, len(present)))
    values = [b"%d" % row for row in range(first, last)]
    valid = bitmap(present)
    assert masked(values, valid, first) == [
        value if here else None for value, here in zip(values, present[first:last], strict=True)
    ]
    assert all_set(valid, len(present)) == all(present)


@given(st.lists(samples.texts, max_size=20), st.integers(0, 9))
def test_slices_are_the_values_between_the_offsets(values: list[bytes], base: int) -> None:
    column = Texts.of(values)
    assert slices(bytes(base) + column.data, base, column.offsets.tolist()) == values


def forge(encoded: bytes, rng: random.Random) -> bytes:
    """A frame whose columns somebody changed, with checksums that say all is well."""
    frame = bytearray(encoded)
    (count,) = unpack_from("<I", frame, 12)
    end = len(frame) - count - 8
    for _ in range(rng.randrange(1, 3)):
        match rng.randrange(6):
            case 0:
                pack_into(
                    "<I", frame, rng.randrange(HEAD_BYTES, end - 3, 4), rng.choice((0, 1, 8, 0x80000000, 0xFFFFFFFF))
                )
            case 1:
                pack_into("<i", frame, rng.randrange(HEAD_BYTES, end - 3, 4), rng.randrange(-16, 64))
            case 2:
                pack_into("<I", frame, HEAD_BYTES, rng.randrange(2 * len(frame)))
            case 3:
                pack_into("<H", frame, 10, rng.getrandbits(9))
            case 4:
                pack_into(
                    "<I", frame, 12, rng.choice((1, count + 1, max(1, count - 1), count + 8, rng.randrange(1, 300)))
                )
            case _:
                frame[rng.randrange(HEAD_BYTES, end)] ^= 1 << rng.randrange(8)
    (count,) = unpack_from("<I", frame, 12)
    end = len(frame) - count - 8
    head_sum = xxh3_64_intdigest(bytes(frame[:48]))
    pack_into("<Q", frame, 48, head_sum)
    if end > HEAD_BYTES:
        pack_into("<Q", frame, end, xxh3_64_intdigest(bytes(frame[HEAD_BYTES:end]), head_sum))
    return bytes(frame)


def ask_everything(block: Block) -> None:
    """Every question, over every kind of range."""
    ranges = {(0, block.count), (0, 0), (block.count, block.count), (block.count // 2, block.count), (0, 1)}
    for first, last in ranges:
        assert len(samples.records(block, first, last)) == last - first
        assert len(block.weights(first, last)) == last - first + 1
    assert block.payload_bytes == block.rows().payload_bytes
    assert len(block.flags) == block.count
    assert isinstance(block.key or block.writer or block.batch_node or b"", bytes)
    block.tag_bytes()
    Block.of(encode_block(block.rows(), topic_id=1, first_seq=1, ts=1))


def test_forged_columns_are_refused_or_make_sense() -> None:
    rng = random.Random(7)
    good = []
    for count in (1, 2, 5, 9, 40):
        for shape in range(16):
            some = [rng.choice([None, b"", b"x" * row]) for row in range(count)]
            written = samples.make_rows(
                [b"[%d]" % row for row in range(count)],
                tag=some if shape & 1 else None,
                node=some if shape & 2 else None,
                meta=some if shape & 4 else None,
            )
            times = array("q", range(count)) if shape & 8 else None
            good.append(
                encode_block(written, topic_id=1, first_seq=1, ts=0, times=times, key=b"k" if shape == 9 else None)
            )
    verdicts = {"bad frame": 0, "bad columns": 0, "sound": 0}
    for _ in range(30_000):
        buffer = forge(rng.choice(good), rng)
        header = read_frame(buffer, 0, len(buffer))
        if not isinstance(header, Frame):
            verdicts["bad frame"] += 1
            continue
        block = Block.read(buffer, header)
        one = read_one(buffer, header)
        if isinstance(block, Bad):
            verdicts["bad columns"] += 1
            assert block.header == header
            assert one is None
            continue
        verdicts["sound"] += 1
        ask_everything(block)
        if one is not None:
            assert one == (block.data(0, 1)[0], (block.tags(0, 1) or [None])[0])
    assert min(verdicts.values()) > 500, verdicts


def columns_of(bits: int, count: int, columns: list[bytes], *, sizes: list[int] | None = None, extra: int = 0) -> bytes:
    """A frame of these columns, whatever they hold; `extra` zeros stand behind them."""
    lengths = sizes or [len(column) for column in columns]
    body = b"".join(size.to_bytes(4, "little") for size in lengths)
    for column in [b"", *columns]:
        body += column
        body += bytes(-len(body) % 8)
    body += bytes(-count % 8 + extra)
    return bytes(HEAD_BYTES) + body + bytes(8) + bytes(count)


def offsets(*numbers: int) -> bytes:
    """A column of texts without a bitmap, before its text."""
    return array("i", numbers).tobytes() + bytes(-4 * len(numbers) % 8)


@pytest.mark.parametrize(
    ("bits", "count", "columns", "why"),
    [
        (0, 2, [offsets(0, 1, 1) + b"a"], None),
        (0, 2, [offsets(0, 1, 2) + b"a"], "ends behind the column"),
        (0, 2, [offsets(0, 1, 0) + b"a"], "ends before the column"),
        (0, 2, [offsets(0, 2, 1) + b"a"], "goes down"),
        (0, 2, [offsets(1, 1, 1) + b"a"], "does not begin at 0"),
        (0, 2, [offsets(0, -1, 1) + b"a"], "is negative"),
        (0, 2, [offsets(0, -(1 << 31), 1) + b"a"], "is the least there is"),
        (0, 2, [offsets(-1, 0, 1) + b"a"], "begins below 0"),
        (0, 2, [offsets(0, (1 << 31) - 1, 1) + b"a"], "is the most there is"),
        (0, 1, [offsets(0, -1)], "of one row is negative"),
        (0, 1, [offsets(0, -8)[:4]], "is cut off"),
        (0, 2, [b""], "is not there"),
        (0, 2, [offsets(0, 0)], "is missing"),
        (Bits.TS, 2, [bytes(16), offsets(0, 0, 0)], None),
        (Bits.TS, 2, [bytes(24), offsets(0, 0, 0)], "too many times"),
        (Bits.TS, 2, [bytes(8), offsets(0, 0, 0)], "too few times"),
        (Bits.TAG, 2, [bytes(8) + offsets(0, 0, 0), offsets(0, 0, 0)], None),
        (Bits.TAG, 2, [offsets(0, 0, 0), offsets(0, 0, 0)], "no bitmap"),
        (Bits.NODE | Bits.BATCH_NODE, 1, [bytes(8) + offsets(0, 0), b"n", offsets(0, 0)], "two nodes"),
        (256, 1, [offsets(0, 0)], "an unknown column"),
        (0, 0, [offsets(0)], "no rows"),
    ],
)
def test_columns_that_contradict_themselves_are_refused(
    bits: int, count: int, columns: list[bytes], why: str | None
) -> None:
    assert (find_columns(columns_of(bits, count, columns), bits, count) is None) == (why is not None)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_columns_fill_their_frame_exactly(count: int) -> None:
    column = offsets(*[0] * count, 3) + b"abc"
    assert find_columns(columns_of(0, count, [column]), 0, count) is not None
    assert find_columns(columns_of(0, count, [column], extra=8), 0, count) is None
    assert find_columns(columns_of(0, count, [column], sizes=[len(column) + 8]), 0, count) is None
    assert find_columns(columns_of(0, count, [column], sizes=[(1 << 32) - 1]), 0, count) is None
    assert find_columns(columns_of(0, count, [column]), 0, 1 << 31) is None
    assert find_columns(columns_of(Bits.TAG, count, [column]), Bits.TAG, count) is None


@given(st.lists(st.integers(0, 9), min_size=2, max_size=70), st.data())
def test_exactly_the_offsets_that_never_go_down_are_sound(steps: list[int], data: st.DataObject) -> None:
    numbers = [0]
    for step in steps:
        numbers.append(numbers[-1] + step)
    text = bytes(numbers[-1])
    count = len(steps)
    assert find_columns(columns_of(0, count, [offsets(*numbers) + text]), 0, count) is not None
    place = data.draw(st.integers(0, count))
    changed = [*numbers]
    changed[place] = data.draw(st.integers(-5, numbers[-1] + 5) | st.integers(-(1 << 31), (1 << 31) - 1))
    sound = changed[0] == 0 and changed[-1] == len(text) and changed == sorted(changed)
    assert (find_columns(columns_of(0, count, [offsets(*changed) + text]), 0, count) is not None) == sound


def test_a_control_frame_is_no_block() -> None:
    header = Frame(Kind.TOPIC, 0, 0, 1, 1, 1, 0, 0, 80)
    assert isinstance(Block.read(bytes(80), header), Bad)


@pytest.mark.parametrize("size", [10, 2730, 2731, 5000])
@pytest.mark.parametrize("tagged", [False, True])
def test_a_large_column_in_pieces_is_the_frame_of_the_same_column_in_one(size: int, *, tagged: bool) -> None:
    """8192 bytes of data and more are not copied together before they are hashed."""
    writes = [
        samples.make_rows([b"x" * size, b"yy" + b"z" * number], tag=[b"a", b"b"] if tagged else None)
        for number in range(3)
    ]
    joined = Rows.joined(writes)
    frame = encode_block(joined, topic_id=3, first_seq=7, ts=9, synced_to=11, key=b"k", flags=b"\xd5" + bytes(5))
    rows = [b"x" * size, b"yy", b"x" * size, b"yyz", b"x" * size, b"yyzz"]
    whole = samples.make_rows(rows, tag=[b"a", b"b"] * 3 if tagged else None)
    assert frame == encode_block(whole, topic_id=3, first_seq=7, ts=9, synced_to=11, key=b"k", flags=b"\xd5" + bytes(5))
    assert wrapped(frame).data(0, 6) == rows
