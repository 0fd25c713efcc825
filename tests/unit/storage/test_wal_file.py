"""WAL files: made ahead, full of zeros, entry durable before use, never made twice."""

import errno

import pytest

from driftq.seam.disk import Site, read_file
from driftq.storage.layout import Layout
from driftq.storage.wal_file import WalFiles
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
    assert read_file(disk, "/data/wal/wal-0000000000000001.log") == bytes(4096)
    assert disk.crash(CrashMode.DROP, 0).exists("/data/wal/wal-0000000000000001.log")


def test_taking_a_prepared_file_makes_nothing() -> None:
    disk = SimDisk()
    files = made(disk)
    files.prepare(1)
    calls = disk.calls
    taken = files.take(1, 100)
    assert (taken.number, taken.size, taken.end, disk.calls) == (1, 4096, 0, calls)


def test_a_file_that_was_not_prepared_is_made_when_it_is_taken() -> None:
    disk = SimDisk()
    taken = made(disk).take(7, 10_000)
    assert taken.size == 10_000
    assert disk.crash(CrashMode.DROP, 0).exists("/data/wal/wal-0000000000000007.log")


def test_a_prepared_file_that_is_too_small_is_made_again() -> None:
    disk = SimDisk()
    files = made(disk)
    files.prepare(1)
    assert files.take(1, 10_000).size == 10_000
    assert len(read_file(disk, "/data/wal/wal-0000000000000001.log")) == 10_000


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
    assert files.take(1, 10).size == 4096


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
