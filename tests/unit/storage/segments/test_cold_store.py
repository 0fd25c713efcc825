"""The files of cold segments, asked for as if they were hot."""

import pytest

from driftq.storage.blocks.block import Block, encode_block
from driftq.storage.blocks.delete_flags import DELETED
from driftq.storage.layout import Layout
from driftq.storage.segments.block_index import BlockIndex
from driftq.storage.segments.cold_store import ColdStore
from driftq.storage.segments.hot_store import BlockDamagedError
from driftq.testing import CrashMode, OrderCheckingDisk, SimDisk
from tests.unit.storage import samples

TOPIC, FIRST = 7, 11
PARQUET = "/cold/topics/00000007/seg-0000000000000011.parquet"


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    layout = Layout(disk, "/data", "/cold")
    layout.prepare()
    layout.prepare_cold()
    return disk


def store_on(disk: SimDisk) -> ColdStore:
    return ColdStore(Layout(OrderCheckingDisk(disk), "/data", "/cold"))


def some_blocks() -> list[Block]:
    """Two neighbours and, behind a gap, a third."""
    blocks = []
    for first, size in ((11, 3), (14, 2), (100, 4)):
        rows = samples.make_rows(
            [b'"%d"' % (first + row) for row in range(size)],
            tag=[b"t", None, b'q"', None][:size],
            node=[None, b"n", None, b"n"][:size],
            meta=[b'{"k":"v"}', None, None, None][:size],
        )
        blocks.append(Block.of(encode_block(rows, topic_id=TOPIC, first_seq=first, ts=first)))
    return blocks


def records_of(store: ColdStore, index: BlockIndex) -> list[samples.Record]:
    return [
        record
        for number in range(len(index))
        for record in samples.records(store.read_block(TOPIC, FIRST, index, number))
    ]


def test_every_record_reads_back_as_it_was(disk: SimDisk) -> None:
    blocks = some_blocks()
    store = store_on(disk)
    index = store.write(TOPIC, FIRST, blocks, bytes(9))
    assert records_of(store, index) == [record for block in blocks for record in samples.records(block)]
    assert [(index.first_seq(n), index.count(n)) for n in range(len(index))] == [(11, 5), (100, 4)]
    assert sum(index.payload(n) for n in range(len(index))) == sum(block.payload_bytes for block in blocks)


def test_a_written_copy_survives_a_power_loss(disk: SimDisk) -> None:
    store = store_on(disk)
    index = store.write(TOPIC, FIRST, some_blocks(), bytes(9))
    after = store_on(disk.crash(CrashMode.DROP, 0))
    found = after.read_index(TOPIC, FIRST)
    assert found is not None
    assert found.cells == index.cells
    assert records_of(after, found) == records_of(store, index)


def test_flags_stand_in_the_order_of_the_rows_and_a_flip_is_durable(disk: SimDisk) -> None:
    flags = bytearray(9)
    flags[1] = DELETED
    store = store_on(disk)
    index = store.write(TOPIC, FIRST, some_blocks(), bytes(flags))
    assert store.read_flags(TOPIC, FIRST, index) == [bytes([0, DELETED, 0, 0, 0]), bytes(4)]
    store.flip(TOPIC, FIRST, [4, 5])
    for reader in (store, store_on(disk.crash(CrashMode.DROP, 0))):
        found = reader.read_index(TOPIC, FIRST)
        assert found is not None
        assert reader.read_flags(TOPIC, FIRST, found) == [bytes([0, DELETED, 0, 0, DELETED]), bytes([DELETED, 0, 0, 0])]
        assert reader.read_block(TOPIC, FIRST, found, 1).flags == bytes([DELETED, 0, 0, 0])


def test_a_second_attempt_replaces_the_first(disk: SimDisk) -> None:
    store = store_on(disk)
    store.write(TOPIC, FIRST, some_blocks()[:1], bytes(3))
    index = store.write(TOPIC, FIRST, some_blocks(), bytes(9))
    assert len(records_of(store, index)) == 9


@pytest.mark.parametrize("suffix", ["parquet", "del"])
def test_what_is_damaged_is_no_segment_and_what_is_missing_is_unavailable(disk: SimDisk, suffix: str) -> None:
    store = store_on(disk)
    store.write(TOPIC, FIRST, some_blocks(), bytes(9))
    image = disk.fork()
    image.unlink(PARQUET.replace("parquet", suffix))
    with pytest.raises(FileNotFoundError):
        store_on(image).read_index(TOPIC, FIRST)
    assert store_on(damaged(disk, suffix)).read_index(TOPIC, FIRST) is None


def damaged(disk: SimDisk, suffix: str) -> SimDisk:
    """Return a disk on which one file of the segment has a wrong byte."""
    image = disk.fork()
    file = image.open(PARQUET.replace("parquet", suffix))
    file.pwritev([b"!"], file.size() - 10 if suffix == "parquet" else 3)
    file.close()
    return image


@pytest.mark.parametrize("suffix", ["parquet", "del"])
@pytest.mark.parametrize("mark", [None, b"0" * 32 + b"\n"], ids=["without a mark", "of another server"])
def test_in_a_directory_without_the_mark_of_this_server_a_wrong_checksum_proves_nothing(
    disk: SimDisk, suffix: str, mark: bytes | None
) -> None:
    """proves: G-SEG-2"""
    store_on(disk).write(TOPIC, FIRST, some_blocks(), bytes(9))
    image = damaged(disk, suffix)
    put(image, "/data/.driftq.id", b"f" * 32 + b"\n")
    if mark is not None:
        put(image, "/cold/topics/.driftq.id", mark)
    with pytest.raises(OSError, match="does not have the mark"):
        store_on(image).read_index(TOPIC, FIRST)
    with pytest.raises(OSError, match="does not have the mark"):
        store_on(image).write(TOPIC, 200, some_blocks(), bytes(9))


def put(disk: SimDisk, path: str, content: bytes) -> None:
    """Write a file."""
    file = disk.create(path)
    file.pwritev([content], 0)
    file.close()


def test_a_damaged_row_group_is_reported_and_the_others_are_served(disk: SimDisk) -> None:
    store = store_on(disk)
    index = store.write(TOPIC, FIRST, some_blocks(), bytes(9))
    file = disk.open(PARQUET)
    file.pwritev([bytes([file.pread(1, 40)[0] ^ 1])], 40)
    file.close()
    with pytest.raises(BlockDamagedError):
        store.read_block(TOPIC, FIRST, index, 0)
    assert store.read_block(TOPIC, FIRST, index, 1).first_seq == 100


def test_dropping_removes_both_parts_and_forgets_them(disk: SimDisk) -> None:
    store = store_on(disk)
    store.write(TOPIC, FIRST, some_blocks(), bytes(9))
    store.drop(TOPIC, FIRST)
    assert disk.names("/cold/topics/00000007") == []
    with pytest.raises(FileNotFoundError):
        store.read_index(TOPIC, FIRST)
