"""The order-checking disk: each rule broken once and kept once."""

import pytest

from driftq.system.disk import Disk, File, Site, write_fully
from driftq.testing import FaultyDisk, OrderCheckingDisk, SimDisk


@pytest.fixture
def disk() -> OrderCheckingDisk:
    inner = SimDisk()
    for root in ("/data", "/cold"):
        inner.mkdir(f"{root}/0A")
    return OrderCheckingDisk(inner)


def _written(disk: Disk, path: str) -> File:
    file = disk.create(path)
    write_fully(file, [b"abc"], 0)
    return file


def _durable(disk: Disk, path: str) -> File:
    file = _written(disk, path)
    disk.sync_dir(path.rpartition("/")[0], Site.WAL_DIR)
    file.sync(Site.WAL_COMMIT)
    return file


def test_a_file_is_renamed_only_with_its_last_write_synced(disk: OrderCheckingDisk) -> None:
    file = _written(disk, "/data/a.tmp")
    with pytest.raises(AssertionError, match=r"/data/a\.tmp is renamed to /data/a before its last write is synced"):
        disk.rename("/data/a.tmp", "/data/a")
    file.sync(Site.SNAPSHOT_FILE)
    file.truncate(1)
    with pytest.raises(AssertionError, match="last write"):
        disk.rename("/data/a.tmp", "/data/a")
    assert disk.exists("/data/a.tmp")
    file.sync(Site.SNAPSHOT_FILE)
    disk.rename("/data/a.tmp", "/data/a")
    assert len(disk.violations) == 2


def test_a_failed_sync_is_no_sync() -> None:
    disk = OrderCheckingDisk(FaultyDisk(SimDisk(), when=lambda operation, path: operation == "sync"))
    file = _written(disk, "/data/a.tmp")
    with pytest.raises(OSError, match="Input/output"):
        file.sync(Site.SNAPSHOT_FILE)
    with pytest.raises(AssertionError, match="last write"):
        disk.rename("/data/a.tmp", "/data/a")


def test_a_write_that_comes_while_a_sync_is_under_way_is_not_covered_by_it() -> None:
    inner = SimDisk()
    disk = OrderCheckingDisk(inner)
    file = _written(disk, "/data/a.tmp")

    def write_meanwhile(operation: str, path: str) -> None:
        if operation == "sync":
            inner.on_call = None
            file.pwritev([b"x"], 0)

    inner.on_call = write_meanwhile
    file.sync(Site.SNAPSHOT_FILE)
    with pytest.raises(AssertionError, match="last write"):
        disk.rename("/data/a.tmp", "/data/a")
    file.sync(Site.SNAPSHOT_FILE)
    disk.rename("/data/a.tmp", "/data/a")


def test_a_handle_is_followed_through_a_rename(disk: OrderCheckingDisk) -> None:
    file = _durable(disk, "/data/a")
    disk.rename("/data/a", "/data/b")
    file.pwritev([b"x"], 0)
    with pytest.raises(AssertionError, match="/data/b is renamed to /data/c"):
        disk.rename("/data/b", "/data/c")


def test_cutting_an_existing_file_is_a_write(disk: OrderCheckingDisk) -> None:
    _durable(disk, "/data/a")
    disk.create("/data/a")
    with pytest.raises(AssertionError, match="last write"):
        disk.rename("/data/a", "/data/b")


def test_an_index_comes_only_behind_synced_data(disk: OrderCheckingDisk) -> None:
    data = _written(disk, "/data/0A/seg-1.data")
    with pytest.raises(AssertionError, match=r"before the \.data beside it is synced"):
        disk.create("/data/0A/seg-1.idx")
    disk.create("/data/0A/seg-1.idx.tmp")
    with pytest.raises(AssertionError, match=r"before the \.data beside it is synced"):
        disk.rename("/data/0A/seg-1.idx.tmp", "/data/0A/seg-1.idx")
    disk.create("/data/0A/seg-2.idx")
    data.sync(Site.SEGMENT_DATA)
    disk.create("/data/0A/seg-1.idx")


def test_a_wal_file_is_synced_only_with_a_durable_entry(disk: OrderCheckingDisk) -> None:
    wal = _written(disk, "/data/wal-1.log")
    with pytest.raises(AssertionError, match=r"/data/wal-1\.log is synced before its directory entry is durable"):
        wal.sync(Site.WAL_COMMIT)
    disk.sync_dir("/data/", Site.WAL_DIR)
    wal.sync(Site.WAL_COMMIT)
    disk.open("/data/wal-1.log").sync(Site.WAL_COMMIT)


def test_the_directories_above_a_wal_file_must_be_durable_too(disk: OrderCheckingDisk) -> None:
    assert disk.mkdir("/data/wal/")
    assert not disk.mkdir("/data/wal")
    disk.mkdir("/data/wal/shard-00")
    wal = _written(disk, "/data/wal/shard-00/wal-1.log")
    for directory in ("/data/wal/shard-00", "/data/wal", "/data"):
        with pytest.raises(AssertionError, match="entry is durable"):
            wal.sync(Site.WAL_COMMIT)
        disk.sync_dir(directory, Site.WAL_DIR)
    wal.sync(Site.WAL_COMMIT)


def test_what_was_there_before_counts_as_durable() -> None:
    inner = SimDisk()
    _written(inner, "/data/wal-1.log")
    disk = OrderCheckingDisk(inner)
    disk.open("/data/wal-1.log").sync(Site.WAL_COMMIT)
    disk.create("/data/wal-1.log").sync(Site.WAL_COMMIT)


@pytest.mark.parametrize("old", ["snapshot-4.bin", "wal-9.log"])
def test_old_state_is_removed_only_when_the_newer_snapshot_is_durable(disk: OrderCheckingDisk, old: str) -> None:
    _durable(disk, f"/data/{old}")
    _durable(disk, "/data/snapshot-5.tmp")
    disk.rename("/data/snapshot-5.tmp", "/data/snapshot-5.bin")
    with pytest.raises(
        AssertionError, match=r"removed before /data/snapshot-5\.bin, which takes its place, is durable"
    ):
        disk.unlink(f"/data/{old}")
    assert disk.exists(f"/data/{old}")
    disk.sync_dir("/data", Site.SNAPSHOT_DIR)
    disk.unlink(f"/data/{old}")


def test_a_snapshot_made_in_place_needs_its_content_durable_too(disk: OrderCheckingDisk) -> None:
    snapshot = _written(disk, "/data/snapshot-5.bin")
    disk.sync_dir("/data", Site.SNAPSHOT_DIR)
    with pytest.raises(AssertionError, match="takes its place"):
        disk.unlink("/data/wal-1.log")
    snapshot.sync(Site.SNAPSHOT_FILE)
    disk.unlink("/data/wal-1.log")


def test_a_failed_snapshot_can_be_thrown_away(disk: OrderCheckingDisk) -> None:
    _written(disk, "/data/snapshot-5.bin")
    disk.unlink("/data/snapshot-5.bin")
    _durable(disk, "/data/wal-1.log")
    disk.unlink("/data/wal-1.log")


@pytest.mark.parametrize("hot", ["data", "idx"])
@pytest.mark.parametrize("cold", ["parquet", "del"])
def test_a_hot_segment_goes_only_when_its_cold_copy_is_durable(disk: OrderCheckingDisk, hot: str, cold: str) -> None:
    path = f"/data/0A/seg-1.{hot}"
    _durable(disk, path)
    copy = _written(disk, f"/cold/0A/seg-1.{cold}")
    with pytest.raises(AssertionError, match="takes its place"):
        disk.unlink(path)
    copy.sync(Site.COLD_PARQUET)
    with pytest.raises(AssertionError, match="takes its place"):
        disk.unlink(path)
    disk.sync_dir("/cold/0A", Site.COLD_DIR)
    disk.unlink(path)


def test_another_segment_or_topic_is_no_cold_copy(disk: OrderCheckingDisk) -> None:
    disk.mkdir("/cold/0B")
    _durable(disk, "/data/0A/seg-1.data")
    _written(disk, "/cold/0A/seg-2.parquet")
    _written(disk, "/cold/0B/seg-1.parquet")
    disk.unlink("/data/0A/seg-1.data")


def test_a_removed_tree_is_forgotten(disk: OrderCheckingDisk) -> None:
    _durable(disk, "/data/0A/seg-1.data")
    _written(disk, "/cold/0A/seg-1.parquet")
    disk.remove_tree("/cold/0A")
    disk.unlink("/data/0A/seg-1.data")
    assert disk.names("/cold") == []


def test_everything_else_is_the_inner_disks() -> None:
    inner = SimDisk()
    disk: Disk = OrderCheckingDisk(inner)
    file = _written(disk, "/data/a")
    assert (file.pread(2, 1), file.pread_nowait(3, 0), file.size()) == (b"bc", b"abc", 3)
    disk.lock("/data/.lock", b"").release()
    assert disk.names("/data") == inner.names("/data") == [".lock", "a"]
    file.close()
