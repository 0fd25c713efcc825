"""The files of hot segments: a pair is a segment, a block is verified, a flag is one byte."""

import pytest

from driftq.storage.blocks.block import Block, encode_block
from driftq.storage.blocks.delete_flags import DELETED
from driftq.storage.layout import Layout
from driftq.storage.segments.block_index import BlockIndex
from driftq.storage.segments.hot_store import BlockDamagedError, Seal, SegmentStore
from driftq.system.disk import Site
from driftq.testing import CrashMode, FaultyDisk, OrderCheckingDisk, SimDisk
from tests.unit.storage import samples

TOPIC, FIRST = 7, 11
DATA = "/data/topics/00000007/seg-0000000000000011.data"


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    Layout(disk, "/data").prepare()
    return disk


def store_on(disk: SimDisk) -> SegmentStore:
    return SegmentStore(Layout(OrderCheckingDisk(disk), "/data"))


def written(store: SegmentStore, *sizes: int) -> BlockIndex:
    """Blocks of these many rows, in their file; the last one is written by a call of its own."""
    index = BlockIndex()
    frames: list[tuple[int, bytes]] = []
    seq, offset = FIRST, 0
    for size in sizes:
        rows = samples.make_rows([b"%d" % (seq + row) for row in range(size)], tag=[b"t"] * size)
        frame = encode_block(rows, topic_id=TOPIC, first_seq=seq, ts=seq)
        block = Block.of(frame)
        index.add(
            first_seq=seq,
            count=size,
            offset=offset,
            length=len(frame),
            first_ts=seq,
            last_ts=block.last_ts,
            payload=block.payload_bytes,
        )
        frames.append((offset, frame))
        seq += size
        offset += len(frame)
    store.write(TOPIC, FIRST, frames[:-1] or frames)
    if frames[:-1]:
        store.write(TOPIC, FIRST, frames[-1:])
    return index


def sealed(store: SegmentStore, *sizes: int) -> BlockIndex:
    index = written(store, *sizes)
    store.seal([Seal(TOPIC, FIRST, index, b"tags")])
    return index


def test_blocks_read_back(disk: SimDisk) -> None:
    store = store_on(disk)
    index = written(store, 3, 2, 5)
    for number in range(3):
        block = store.read_block(TOPIC, FIRST, index, number)
        assert block.data(0, 1) == [b"%d" % index.first_seq(number)]
        again = store.read_block_nowait(TOPIC, FIRST, index, number)
        assert again is not None
        assert again.frame == block.frame
    disk.cached = False
    assert store.read_block_nowait(TOPIC, FIRST, index, 0) is None


def test_a_sealed_pair_survives_a_power_loss(disk: SimDisk) -> None:
    index = sealed(store_on(disk), 3, 2)
    after = store_on(disk.crash(CrashMode.DROP, 0))
    found = after.read_index(TOPIC, FIRST)
    assert found is not None
    assert found.cells == index.cells
    assert after.read_block(TOPIC, FIRST, found, 1).count == 2
    assert after.holds(TOPIC, FIRST, sum(index.place(1)))


def test_several_segments_are_sealed_together(disk: SimDisk) -> None:
    store = store_on(disk)
    seals: list[Seal] = []
    for topic_id in (1, 1, 2):
        first = 1 + 10 * len(seals)
        frame = encode_block(samples.make_rows([b"1"]), topic_id=topic_id, first_seq=first, ts=1)
        index = BlockIndex()
        index.add(first_seq=first, count=1, offset=0, length=len(frame), first_ts=1, last_ts=1, payload=1)
        store.write(topic_id, first, [(0, frame)])
        seals.append(Seal(topic_id, first, index, b""))
    store.seal(seals)
    after = store_on(disk.crash(CrashMode.DROP, 0))
    assert all(after.read_index(seal.topic_id, seal.first_seq) is not None for seal in seals)


def test_a_lone_part_is_no_segment(disk: SimDisk) -> None:
    store = store_on(disk)
    written(store, 3)
    assert store.read_index(TOPIC, FIRST) is None
    sealed(store, 3)
    disk.unlink(DATA)
    assert store.read_index(TOPIC, FIRST) is None


def test_synced_data_survives_without_an_index(disk: SimDisk) -> None:
    store = store_on(disk)
    index = written(store, 3, 4)
    store.sync_data(TOPIC, [(FIRST, sum(index.place(1)))])
    after = store_on(disk.crash(CrashMode.DROP, 0))
    assert after.read_block(TOPIC, FIRST, index, 1).count == 4


class Forgetful:
    """A disk whose first sync of a segment's data, or flags, fails and leaves its pages clean."""

    def __init__(self, disk: SimDisk) -> None:
        self.faulty = FaultyDisk(disk, when=self._strikes)
        self._disk = disk

    def _strikes(self, operation: str, path: str) -> bool:
        strikes = operation == "sync" and path == DATA
        if strikes and not self.faulty.failed:
            self._disk.open(path).forget_pending()
        return strikes


def store_on_forgetful(disk: SimDisk) -> SegmentStore:
    return SegmentStore(Layout(Forgetful(disk).faulty, "/data"))


def test_data_whose_sync_failed_is_written_again_before_the_next(disk: SimDisk) -> None:
    """The kernel takes the pages of a failed sync for clean, and the next sync has nothing to do.

    proves: G-IO-5, G-SEG-1
    """
    for again in ("sync_data", "seal"):
        image = disk.fork()
        store = store_on_forgetful(image)
        index = written(store, 3, 4)
        size = sum(index.place(1))
        with pytest.raises(OSError, match="Input/output"):
            store.sync_data(TOPIC, [(FIRST, size)])
        if again == "seal":
            store.seal([Seal(TOPIC, FIRST, index, b"")])
        else:
            store.sync_data(TOPIC, [(FIRST, size)])
        after = store_on(image.crash(CrashMode.DROP, 0))
        assert [after.read_block(TOPIC, FIRST, index, number).count for number in (0, 1)] == [3, 4]


def test_a_failed_sync_of_flags_is_one_of_the_blocks_behind_them_too(disk: SimDisk) -> None:
    """proves: G-IO-5"""
    store = store_on_forgetful(disk)
    index = written(store, 3, 4)
    with pytest.raises(OSError, match="Input/output"):
        store.flip(TOPIC, FIRST, [sum(index.place(0)) - 3])
    store.sync_data(TOPIC, [(FIRST, sum(index.place(1)))])
    after = store_on(disk.crash(CrashMode.DROP, 0))
    assert after.read_block(TOPIC, FIRST, index, 0).flags == bytes([DELETED, 0, 0])
    assert after.read_block(TOPIC, FIRST, index, 1).count == 4


@pytest.mark.parametrize("cut", [1, 40, None])
def test_data_that_is_not_to_be_had_any_more_behind_a_failed_sync_is_not_called_durable(
    disk: SimDisk, cut: int | None
) -> None:
    """Its pages may have left memory, and the device has something older. The log still has the records."""
    store = store_on_forgetful(disk)
    index = written(store, 3, 4)
    size = sum(index.place(1))
    with pytest.raises(OSError, match="Input/output"):
        store.sync_data(TOPIC, [(FIRST, size)])
    disk.open(DATA).truncate(index.place(1)[0] if cut is None else size - cut)
    for _ in range(2):
        with pytest.raises(BlockDamagedError, match="after a failed sync"):
            store.sync_data(TOPIC, [(FIRST, size)])


def test_a_damaged_index_is_made_again_from_the_data(disk: SimDisk) -> None:
    store = store_on(disk)
    index = sealed(store, 3, 2, 5)
    file = disk.open(DATA.replace(".data", ".idx"))
    file.pwritev([b"?"], 30)
    file.close()
    assert store.read_index(TOPIC, FIRST) is None
    found = store.scan_index(TOPIC, FIRST, FIRST + 10)
    assert found is not None
    assert found.cells == index.cells
    assert store.scan_index(TOPIC, FIRST, FIRST + 11) is None, "there is no more"


@pytest.mark.parametrize("place", [0, 20, 60, 100])
def test_a_damaged_block_is_reported_and_its_neighbours_are_served(disk: SimDisk, place: int) -> None:
    store = store_on(disk)
    index = sealed(store, 3, 2, 5)
    offset, _ = index.place(1)
    file = disk.open(DATA)
    file.pwritev([bytes([file.pread(1, offset + place)[0] ^ 8])], offset + place)
    file.close()
    for read in (store.read_block, store.read_block_nowait):
        with pytest.raises(BlockDamagedError, match=r"14\.\.15"):
            read(TOPIC, FIRST, index, 1)
        assert read(TOPIC, FIRST, index, 0) is not None
        assert read(TOPIC, FIRST, index, 2) is not None


def test_a_sound_block_in_the_wrong_place_is_not_served(disk: SimDisk) -> None:
    store = store_on(disk)
    index = sealed(store, 3)
    wrong = BlockIndex()
    offset, length = index.place(0)
    wrong.add(first_seq=99, count=3, offset=offset, length=length, first_ts=1, last_ts=1, payload=1)
    with pytest.raises(BlockDamagedError, match="not the one that the index lists"):
        store.read_block(TOPIC, FIRST, wrong, 0)


def test_a_flag_is_one_byte_that_changes_nothing_else_and_is_durable(disk: SimDisk) -> None:
    store = store_on(disk)
    index = sealed(store, 3, 2)
    before = store.read_block(TOPIC, FIRST, index, 1).frame
    offset, length = index.place(1)
    store.flip(TOPIC, FIRST, [offset + length - 2])
    after = store_on(disk.crash(CrashMode.DROP, 0))
    assert after.read_flags(TOPIC, FIRST, index) == [b"\0\0\0", bytes([DELETED, 0])]
    assert after.read_block(TOPIC, FIRST, index, 1).frame[:-2] == before[:-2]
    assert disk.synced[Site.SEGMENT_FLAG] == 1


def test_dropping_removes_every_part(disk: SimDisk) -> None:
    store = store_on(disk)
    sealed(store, 3)
    store.drop(TOPIC, FIRST)
    assert disk.names("/data/topics/00000007") == []
    store.drop(TOPIC, FIRST)
    assert (store.read_tags(TOPIC, FIRST), store.holds(TOPIC, FIRST, 0)) == (None, False)


def test_handles_that_are_kept_open_are_few_and_can_be_given_back(disk: SimDisk) -> None:
    store = store_on(disk)
    index = sealed(store, 3)
    store.read_block_nowait(TOPIC, FIRST, index, 0)
    store.forget(TOPIC, FIRST)
    assert store.read_block_nowait(TOPIC, FIRST, index, 0) is not None
    store.close()
    assert store.read_block_nowait(TOPIC, FIRST, index, 0) is not None
