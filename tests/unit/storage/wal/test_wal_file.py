"""WAL files: made ahead, full of zeros, entry durable before use, never made twice."""

import errno

import pytest

from driftq.storage.layout import Layout
from driftq.storage.wal.wal_file import WalFiles, margin_of, reserve_of
from driftq.storage.wal.wal_head import HEAD_BYTES
from driftq.system.disk import Site, read_file
from driftq.testing import CrashMode, FaultyDisk, SimDisk


def made(disk: SimDisk, name: str = "") -> WalFiles:
    layout = Layout(disk, "/data")
    layout.prepare()
    files = WalFiles(layout, name, 4096)
    files.make_directory()
    return files


def test_a_prepared_file_is_zeros_and_its_entry_is_durable() -> None:
    disk = SimDisk()
    made(disk).prepare(1)
    assert read_file(disk, "/data/wal/wal-0000000000000001.log") == bytes(HEAD_BYTES + 4096)
    assert disk.crash(CrashMode.DROP, 0).exists("/data/wal/wal-0000000000000001.log")


def test_taking_a_prepared_file_makes_nothing() -> None:
    disk = SimDisk()
    files = made(disk)
    files.prepare(1)
    calls = disk.calls
    taken = files.take(1, 100)
    assert (taken.number, taken.size, taken.end, disk.calls) == (1, HEAD_BYTES + 4096, 0, calls)


def test_a_file_that_was_not_prepared_is_made_when_it_is_taken() -> None:
    disk = SimDisk()
    taken = made(disk).take(7, 10_000)
    assert (taken.size, taken.open_to) == (HEAD_BYTES + 12_288, HEAD_BYTES + 12_288 - reserve_of(4096))
    assert disk.crash(CrashMode.DROP, 0).exists("/data/wal/wal-0000000000000007.log")


def test_a_prepared_file_that_is_too_small_is_extended() -> None:
    disk = SimDisk()
    files = made(disk)
    files.prepare(1)
    taken = files.take(1, 10_000)
    assert (taken.size, taken.open_to) == (HEAD_BYTES + 12_288, HEAD_BYTES + 12_288 - reserve_of(4096))
    assert read_file(disk, "/data/wal/wal-0000000000000001.log") == bytes(taken.size)


def test_a_prepared_file_that_cannot_be_extended_stays_prepared() -> None:
    disk = SimDisk()
    files = made(disk)
    files.prepare(1)
    disk.space = HEAD_BYTES + 6000
    with pytest.raises(OSError, match="No space"):
        files.take(1, 10_000)
    assert files.is_ready(1)
    taken = files.take(1, 100)
    assert (taken.size, taken.file.size()) == (HEAD_BYTES + 4096,) * 2


def test_without_room_for_a_whole_file_nothing_is_written_to_find_out() -> None:
    disk = SimDisk()
    files = made(disk)
    disk.space = HEAD_BYTES + 4096 + margin_of(4096) - 1
    calls = disk.calls
    error = files.prepare(1)
    assert error is not None
    assert error.errno == errno.ENOSPC
    assert (disk.calls, disk.names("/data/wal")) == (calls, [])
    disk.space += 1
    assert files.prepare(1) is None


def test_a_small_file_is_all_reserve_and_as_small_as_it_must_be() -> None:
    disk = SimDisk()
    layout = Layout(disk, "/data")
    layout.prepare()
    files = WalFiles(layout, "", 64 << 20)
    disk.space = 1 << 20
    taken = files.take_small(1, 100)
    assert (taken.size, taken.open_to, taken.is_small) == (HEAD_BYTES + (256 << 10), HEAD_BYTES, True)
    disk.space = disk.used_bytes() + (28 << 10)
    assert files.take_small(2, 100).size == HEAD_BYTES + (16 << 10)
    with pytest.raises(OSError, match="No space"):
        files.take_small(3, 100)
    disk.space = None
    files.prepare(3)
    assert files.take_small(3, 100).size == HEAD_BYTES + (64 << 20), "one that was made meanwhile is better"


def test_a_file_that_is_in_use_is_not_prepared_by_a_thread_that_comes_late() -> None:
    disk = SimDisk()
    files = made(disk)
    taken = files.take(1, 100)
    taken.file.pwritev([b"frames"], 0)
    files.prepare(1)
    assert read_file(disk, "/data/wal/wal-0000000000000001.log").startswith(b"frames")


def test_a_failure_to_prepare_is_met_again_when_the_file_is_taken() -> None:
    disk = SimDisk()
    made(disk)
    faulty = FaultyDisk(disk, error=errno.ENOSPC, forever=True)
    files = WalFiles(Layout(faulty, "/data"), "", 4096)
    files.prepare(1)
    with pytest.raises(OSError, match="No space"):
        files.take(1, 10)
    assert disk.names("/data/wal") == []
    faulty.heal()
    assert files.take(1, 10).size == HEAD_BYTES + 4096


def test_a_file_whose_entry_cannot_be_synced_is_no_file() -> None:
    disk = SimDisk()
    made(disk)
    files = WalFiles(Layout(FaultyDisk(disk, when=lambda call, _: call == "sync_dir"), "/data"), "", 4096)
    with pytest.raises(OSError, match="Input/output"):
        files.take(1, 10)
    assert disk.names("/data/wal") == []


def test_closing_removes_what_was_never_used() -> None:
    disk = SimDisk()
    files = made(disk)
    files.take(1, 10)
    files.prepare(2)
    files.close()
    assert disk.names("/data/wal") == ["wal-0000000000000001.log"]


def test_the_directory_of_a_shard_is_durable() -> None:
    disk = SimDisk()
    made(disk, "shard-02")
    assert disk.synced[Site.WAL_DIR] == 1
    assert disk.crash(CrashMode.DROP, 0).exists("/data/wal/shard-02")


def test_a_reserve_that_cannot_be_lengthened_is_kept() -> None:
    """A start with larger files on a full disk keeps the reserve file that is there.

    proves: G-IO-14
    """
    disk = SimDisk(["/data"])
    layout = Layout(disk, "/data")
    layout.prepare()
    WalFiles(layout, "", 1 << 20, keeps_reserve=True).keep_reserve()
    path = layout.wal_reserve_path("")
    size = disk.open(path).size()
    disk.space = disk.used_bytes() + 5000
    WalFiles(layout, "", 64 << 20, keeps_reserve=True).keep_reserve()
    assert disk.open(path).size() == size > 0
    disk.space = None
    WalFiles(layout, "", 64 << 20, keeps_reserve=True).keep_reserve()
    assert disk.open(path).size() > size
