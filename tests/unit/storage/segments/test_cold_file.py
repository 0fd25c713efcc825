"""Cold segments: the same records out of Parquet, flags that belong to their file, and damage always noticed."""

from array import array
from collections.abc import Sequence
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from driftq.errors import NewerFormatError
from driftq.storage.blocks.block import Block, encode_block
from driftq.storage.blocks.block_arrow import record_schema
from driftq.storage.blocks.delete_flags import DELETED
from driftq.storage.segments import cold_file as cold
from driftq.storage.segments.cold_file import (
    DEL_HEADER_BYTES,
    FORMAT,
    ColdDamagedError,
    ColdFile,
    encode_del,
    encode_parquet,
)
from driftq.system.disk import write_fully
from driftq.testing import SimDisk
from tests.unit.storage import samples

PATH = "/cold/segment.parquet"


def stored(content: bytes) -> SimDisk:
    """A disk with this Parquet file."""
    disk = SimDisk()
    file = disk.create(PATH)
    if content:
        write_fully(file, [content], 0)
    return disk


def opened(parquet: bytes, flags: bytes | None = None, *, records: int = 0) -> ColdFile:
    """A cold segment that must open."""
    file = ColdFile.open(stored(parquet), PATH, encode_del(bytes(records) if flags is None else flags, parquet))
    assert file is not None
    return file


def block_of(count: int, *, first_seq: int = 1, ts: int = 1_700_000_000_000, size: int = 10) -> Block:
    """A plain block of so many rows."""
    rows = samples.make_rows(
        [b'"%0*d"' % (size, row) for row in range(count)], tag=[b"t%d" % row for row in range(count)]
    )
    times = array("q", range(ts, ts + count))
    return Block.of(encode_block(rows, topic_id=9, first_seq=first_seq, ts=ts, times=times))


def all_records(file: ColdFile) -> list[samples.Record]:
    return [record for number in range(len(file.groups)) for record in samples.records(file.read_group(number))]


@st.composite
def segments(draw: st.DrawFn) -> list[Block]:
    """Blocks in order of their seqs and times, now and then with a hole between two."""
    seq = draw(st.integers(1, 1 << 40))
    ts = draw(samples.times)
    blocks = []
    for _ in range(draw(st.integers(1, 4))):
        seq += draw(st.sampled_from([0, 0, 0, 1, 70_000]))
        ts += draw(st.sampled_from([0, 0, 1]))
        block = Block.of(draw(samples.frames(first_seq=seq, first_ts=ts, rows_max=12)))
        blocks.append(block)
        seq += block.count
        ts = samples.records(block)[-1].ts
    return blocks


@given(segments(), st.integers(0, (1 << 64) - 1))
def test_every_record_comes_back_exactly(blocks: list[Block], topic_id: int) -> None:
    flags = b"".join(block.flags for block in blocks)
    file = opened(encode_parquet(blocks, topic_id=topic_id), flags)
    assert all_records(file) == [record for block in blocks for record in samples.records(block)]
    assert file.flags() == flags
    assert (file.topic_id, file.first_seq, file.count) == (topic_id, blocks[0].first_seq, len(flags))
    assert b"".join(file.read_group(number).flags for number in range(len(file.groups))) == flags


@given(segments())
def test_groups_say_what_an_index_needs(blocks: list[Block]) -> None:
    file = opened(encode_parquet(blocks, topic_id=1), records=sum(block.count for block in blocks))
    next_seq = 0
    for number, group in enumerate(file.groups):
        block = file.read_group(number)
        found = samples.records(block)
        assert (group.first_seq, group.count) == (block.first_seq, block.count) == (found[0].seq, len(found))
        assert (group.first_ts, group.last_ts) == (found[0].ts, found[-1].ts)
        assert group.payload_bytes == block.payload_bytes
        assert group.first_seq != next_seq or number == 0
        next_seq = group.first_seq + group.count


@given(segments())
def test_anybody_can_read_the_parquet_file(blocks: list[Block]) -> None:
    table = pq.read_table(BytesIO(encode_parquet(blocks, topic_id=1)))
    assert table.schema.equals(record_schema())
    shown = [
        table["seq"].to_pylist(),
        table["ts"].cast(pa.int64()).to_pylist(),
        *(
            [None if value is None else value.encode() for value in table[name].to_pylist()]
            for name in ("tag", "node", "meta", "data")
        ),
    ]
    assert list(zip(*shown, strict=True)) == [record for block in blocks for record in samples.records(block)]


def test_the_file_is_compressed_has_statistics_and_no_dictionaries() -> None:
    metadata = pq.read_metadata(BytesIO(encode_parquet([block_of(100)], topic_id=77)))
    assert metadata.metadata[b"driftq.topic_id"] == b"77"
    assert metadata.metadata[b"driftq.first_seq"] == b"1"
    group = metadata.row_group(0)
    columns = {group.column(number).path_in_schema: group.column(number) for number in range(6)}
    assert list(columns) == ["seq", "ts", "node", "tag", "meta", "data"]
    for column in columns.values():
        assert column.compression == "ZSTD"
        assert not column.has_dictionary_page
    assert (columns["seq"].statistics.min, columns["seq"].statistics.max) == (1, 100)
    assert (columns["tag"].statistics.min, columns["tag"].statistics.max) == ("t0", "t99")
    assert columns["ts"].statistics.has_min_max


def groups_of(blocks: Sequence[Block]) -> list[tuple[int, int]]:
    file = opened(encode_parquet(blocks, topic_id=1), records=sum(block.count for block in blocks))
    assert all_records(file) == [record for block in blocks for record in samples.records(block)]
    return [(group.first_seq, group.count) for group in file.groups]


def test_a_row_group_ends_at_its_rows_wherever_blocks_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold, "GROUP_ROWS_MAX", 10)
    blocks = [block_of(7), block_of(7, first_seq=8), block_of(25, first_seq=15)]
    assert groups_of(blocks) == [(1, 10), (11, 10), (21, 10), (31, 9)]


def test_a_row_group_ends_at_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold, "GROUP_BYTES_MAX", 100)
    assert groups_of([block_of(5, size=18), block_of(5, first_seq=6, size=18)]) == [(1, 5), (6, 5)]
    assert groups_of([block_of(7, size=28)]) == [(1, 4), (5, 3)]
    assert groups_of([block_of(3, size=300)]) == [(1, 1), (2, 1), (3, 1)]


def test_a_row_group_ends_where_seqs_jump() -> None:
    assert groups_of([block_of(3), block_of(3, first_seq=4), block_of(2, first_seq=8)]) == [(1, 6), (8, 2)]


def test_a_common_node_is_stored_once_again() -> None:
    rows = samples.make_rows([b"1"] * 5, batch_node=b"n")
    even = samples.make_rows([b"1"] * 3, node=[b"aa", b"a", b"aaa"])
    empty = samples.make_rows([b"1"] * 3, node=[b"", b"", b""])
    for written, common in ((rows, b"n"), (even, None), (empty, b"")):
        file = opened(
            encode_parquet([Block.of(encode_block(written, topic_id=1, first_seq=1, ts=1))], topic_id=1),
            records=written.count,
        )
        assert file.read_group(0).batch_node == common


def test_a_flag_is_one_byte_behind_the_header_and_outside_the_checksum() -> None:
    parquet = encode_parquet([block_of(10)], topic_id=1)
    content = bytearray(encode_del(bytes(10), parquet))
    assert len(content) == DEL_HEADER_BYTES + 10
    content[DEL_HEADER_BYTES + 4] = DELETED
    file = ColdFile.open(stored(parquet), PATH, bytes(content))
    assert file is not None
    assert file.flags() == bytes(4) + bytes([DELETED]) + bytes(5)
    assert file.read_group(0).flags == file.flags()


def test_flags_of_another_file_are_refused() -> None:
    parquet, other = (encode_parquet([block_of(10, ts=ts)], topic_id=1) for ts in (5, 6))
    assert ColdFile.open(stored(parquet), PATH, encode_del(bytes(10), other)) is None


def test_damaged_flags_are_refused() -> None:
    parquet = encode_parquet([block_of(10)], topic_id=1)
    good = encode_del(bytes(10), parquet)
    disk = stored(parquet)
    for place in range(DEL_HEADER_BYTES):
        content = bytearray(good)
        content[place] ^= 4
        assert ColdFile.open(disk, PATH, bytes(content)) is None
    for bad in (good[:-1], good + b"\0", good[:DEL_HEADER_BYTES], good[:10], b""):
        assert ColdFile.open(disk, PATH, bad) is None


def test_flags_for_other_rows_than_there_are_mean_damage() -> None:
    parquet = encode_parquet([block_of(10)], topic_id=1)
    with pytest.raises(ColdDamagedError, match="10 records and 9 delete flags"):
        ColdFile.open(stored(parquet), PATH, encode_del(bytes(9), parquet))


def test_newer_formats_are_told_from_damage() -> None:
    parquet = encode_parquet([block_of(1)], topic_id=1)
    newer = bytearray(encode_del(bytes(1), parquet))
    newer[3] = 2
    newer[16:24] = xxh3_64_intdigest(bytes(newer[:16])).to_bytes(8, "little")
    with pytest.raises(NewerFormatError, match="version 2"):
        ColdFile.open(stored(parquet), PATH, bytes(newer))


def test_a_newer_parquet_is_told_from_damage() -> None:
    parquet = encode_parquet([block_of(1)], topic_id=1, version=FORMAT + 1)
    with pytest.raises(NewerFormatError, match=f"version {FORMAT + 1}"):
        ColdFile.open(stored(parquet), PATH, encode_del(bytes(1), parquet))


@given(segments())
def test_the_footer_has_the_tag_of_every_row(blocks: list[Block]) -> None:
    file = opened(encode_parquet(blocks, topic_id=1), records=sum(block.count for block in blocks))
    for number, codes in enumerate(file.tag_codes()):
        tags = file.read_group(number).tags(0, file.groups[number].count) or [None] * file.groups[number].count
        names = sorted({tag for tag in tags if tag is not None})
        numbers = {name: place for place, name in enumerate(names)}
        assert codes is not None
        for wide in (False, True):
            found = codes.numbered(len(tags), numbers, wide=wide)
            if None in tags:
                assert found is None
            else:
                assert found is not None
                assert [names[place] for place in found] == tags
        assert codes.numbered(len(tags) + 1, numbers, wide=False) is None


def test_files_of_version_1_have_no_tags_in_their_footer() -> None:
    assert opened(encode_parquet([block_of(10)], topic_id=1, version=1), records=10).tag_codes() == [None]


@pytest.mark.parametrize("version", [1, FORMAT])
def test_a_repair_knows_the_flags_of_a_file_of_any_version_whose_footer_is_damaged(version: int) -> None:
    parquet = encode_parquet([block_of(10)], topic_id=1, version=version)
    flags = encode_del(bytes(4) + bytes([DELETED]) + bytes(5), parquet)
    damaged = parquet.replace(b"parquet-cpp-arrow", b"parquet-cpp-arrox")
    assert damaged != parquet
    assert ColdFile.open(stored(damaged), PATH, flags) is None
    assert ColdFile.open_alone(stored(damaged), PATH, flags).flags() == flags[DEL_HEADER_BYTES:]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1PAR1", bytes(100), b"PAR1" + b"\xff" * 4 + b"PAR1"])
def test_what_does_not_end_as_a_parquet_file_is_damage(content: bytes) -> None:
    good = encode_parquet([block_of(1)], topic_id=1)
    assert verdict(content, encode_del(b"\0", good)) in ("no pair", "damaged")


def test_a_missing_file_is_no_damage() -> None:
    with pytest.raises(FileNotFoundError):
        ColdFile.open(SimDisk(), PATH, b"")


def test_a_parquet_file_of_somebody_else_is_damage() -> None:
    sink = BytesIO()
    pq.write_table(pa.table({"seq": [1]}), sink)
    with pytest.raises(ColdDamagedError, match="no valid description"):
        ColdFile.open(stored(sink.getvalue()), PATH, encode_del(b"\0", sink.getvalue()))


def test_a_footer_longer_than_one_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold, "_TAIL_GUESS", 64)
    file = opened(encode_parquet([block_of(3)], topic_id=1), records=3)
    assert file.count == 3


def verdict(parquet: bytes, flags: bytes) -> str | list[samples.Record]:
    """What becomes of a file: its records, or how it was refused. Anything raw that pyarrow raises fails the test."""
    try:
        file = ColdFile.open(stored(parquet), PATH, flags)
        return "no pair" if file is None else all_records(file)
    except ColdDamagedError:
        return "damaged"


@settings(max_examples=20)
@given(segments())
def test_no_flipped_bit_is_served(blocks: list[Block]) -> None:
    parquet = encode_parquet(blocks, topic_id=1)
    flags = encode_del(bytes(sum(block.count for block in blocks)), parquet)
    whole = verdict(parquet, flags)
    assert isinstance(whole, list)
    for place in range(4, len(parquet), 7):
        damaged = bytearray(parquet)
        damaged[place] ^= 1 << place % 8
        assert verdict(bytes(damaged), flags) in ("no pair", "damaged")


@settings(max_examples=20)
@given(segments(), st.data())
def test_no_shortened_file_is_served(blocks: list[Block], data: st.DataObject) -> None:
    parquet = encode_parquet(blocks, topic_id=1)
    flags = encode_del(bytes(sum(block.count for block in blocks)), parquet)
    end = data.draw(st.integers(0, len(parquet) - 1))
    assert verdict(parquet[:end], flags) in ("no pair", "damaged")
    assert verdict(parquet[:end] + bytes(len(parquet) - end), flags) in ("no pair", "damaged")


def test_one_damaged_group_leaves_the_others_readable() -> None:
    parquet = bytearray(encode_parquet([block_of(3), block_of(3, first_seq=9)], topic_id=1))
    flags = encode_del(bytes(6), bytes(parquet))
    file = ColdFile.open(stored(bytes(parquet)), PATH, flags)
    assert file is not None
    parquet[file.groups[0].start + 5] ^= 1
    file = ColdFile.open(stored(bytes(parquet)), PATH, flags)
    assert file is not None
    with pytest.raises(ColdDamagedError, match=r"seqs 1\.\.3"):
        file.read_group(0)
    assert [record.seq for record in samples.records(file.read_group(1))] == [9, 10, 11]


def test_a_file_that_shrinks_after_it_was_opened_is_damage() -> None:
    parquet = encode_parquet([block_of(3)], topic_id=1)
    disk = stored(parquet)
    file = ColdFile.open(disk, PATH, encode_del(bytes(3), parquet))
    assert file is not None
    disk.open(PATH).truncate(20)
    with pytest.raises(ColdDamagedError):
        file.read_group(0)


def test_groups_the_decoder_refuses_are_damage_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if a checksum vouched for bytes that are no row group, nothing raw of pyarrow's comes out."""
    parquet = bytearray(encode_parquet([block_of(300)], topic_id=1))
    flags = encode_del(bytes(300), bytes(parquet))
    file = ColdFile.open(stored(bytes(parquet)), PATH, flags)
    assert file is not None
    group = file.groups[0]
    monkeypatch.setattr(cold, "xxh3_64_intdigest", lambda _: group.checksum)
    for place in range(group.start, group.end, 11):
        damaged = bytearray(parquet)
        damaged[place] ^= 0x10
        disk = stored(bytes(damaged))
        broken = ColdFile(disk, PATH, len(parquet), file._metadata, bytes(300))
        try:
            broken.read_group(0)
        except ColdDamagedError:
            continue
