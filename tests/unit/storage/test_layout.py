"""Paths are made of numbers, and what is found is what was made."""

import pytest

from driftq.storage.layout import Layout, make_directory
from driftq.system.disk import Site
from driftq.testing import CrashMode, SimDisk


@pytest.fixture
def layout() -> Layout:
    return prepared(SimDisk())


def prepared(disk: SimDisk) -> Layout:
    made = Layout(disk, "/data", "/cold")
    made.prepare()
    made.prepare_cold()
    return made


def touch(layout: Layout, *paths: str) -> None:
    for path in paths:
        layout.disk.create(path).close()


def test_names_are_those_of_the_contract(layout: Layout) -> None:
    """http-v0 19.1."""
    assert layout.lock_path == "/data/.driftq.lock"
    assert layout.snapshot_path(7) == "/data/meta/snapshot-0000000000000007.bin"
    assert layout.wal_path("", 12) == "/data/wal/wal-0000000000000012.log"
    assert layout.wal_path(layout.shard_name(3, 4), 12) == "/data/wal/shard-03/wal-0000000000000012.log"
    assert layout.shard_name(0, 1) == ""
    assert layout.segment_path(0xAB, 1001, "data") == "/data/topics/000000AB/seg-0000000000001001.data"
    assert layout.segment_path(0xAB, 1001, "parquet") == "/cold/topics/000000AB/seg-0000000000001001.parquet"
    assert layout.segment_path(1 << 36, 1, "del") == "/cold/topics/1000000000/seg-0000000000000001.del"


def test_preparing_twice_changes_nothing() -> None:
    disk = SimDisk()
    prepared(disk)
    calls, synced = disk.calls, disk.synced[Site.LAYOUT_DIR]
    before = disk.state_digest()
    prepared(disk)
    assert disk.state_digest() == before
    # Synced again all the same: whoever made the directories may have died before it could.
    assert (disk.calls > calls, disk.synced[Site.LAYOUT_DIR]) == (True, 2 * synced)


def test_a_cold_directory_that_no_server_has_had_is_not_there() -> None:
    disk = SimDisk(["/data"])
    layout = Layout(disk, "/data", "/far/away")
    layout.prepare()
    assert not layout.has_cold()
    make_directory(disk, "/far/away")
    assert not layout.has_cold()
    layout.prepare_cold()
    assert Layout(disk.crash(CrashMode.DROP, 0), "/data", "/far/away").has_cold()


def test_every_directory_is_there_behind_a_crash() -> None:
    """Each of them by a sync of its own: parts may be staged before anything else is synced there.

    proves: G-STG-1
    """
    disk = SimDisk(["/data"])
    layout = Layout(disk, "/data")
    layout.prepare()
    assert disk.crash(CrashMode.DROP, 0).names("/data") == ["meta", "topics", "wal"]
    layout.prepare_stage()
    assert disk.crash(CrashMode.DROP, 0).names("/data") == ["meta", "stage", "topics", "wal"]


def test_without_tiering_there_is_nothing_cold() -> None:
    layout = Layout(SimDisk(["/data"]), "/data")
    layout.prepare()
    assert layout.topic_ids(cold=True) == []
    assert layout.segment_files(1, cold=True) == {}
    assert layout.topic_ids(cold=False) == []


def test_finished_snapshots_are_found_in_order_and_nothing_else(layout: Layout) -> None:
    touch(layout, layout.snapshot_path(12), layout.snapshot_path(3), f"{layout.snapshot_path(13)}.tmp")
    touch(layout, "/data/meta/snapshot-1.bin", "/data/meta/other")
    assert layout.snapshots() == [3, 12]


def test_wal_files_of_every_shard_count_are_found_in_the_order_of_replay(layout: Layout) -> None:
    for name in ("shard-00", "shard-01", "shards", "shard-x"):
        layout.disk.mkdir(layout.wal_dir(name))
    touch(
        layout,
        *(layout.wal_path(name, number) for name, number in [("shard-01", 5), ("shard-00", 4), ("", 9), ("", 2)]),
    )
    touch(layout, "/data/wal/wal-1.log", "/data/wal/shards/wal-0000000000000001.log")
    assert layout.wal_dirs() == ["", "shard-00", "shard-01"]
    assert layout.wal_files() == [(2, ""), (4, "shard-00"), (5, "shard-01"), (9, "")]


def test_segments_are_found_by_first_seq_with_the_parts_that_are_there(layout: Layout) -> None:
    for cold in (False, True):
        layout.disk.mkdir(layout.topic_dir(5, cold=cold))
    layout.disk.mkdir("/data/topics/lost+found")
    touch(layout, *(layout.segment_path(5, 1, suffix) for suffix in ("data", "idx", "tags", "parquet", "del")))
    touch(layout, layout.segment_path(5, 900, "data"), "/data/topics/00000005/seg-x.data")
    assert layout.segment_files(5, cold=False) == {1: {"data", "idx", "tags"}, 900: {"data"}}
    assert layout.segment_files(5, cold=True) == {1: {"parquet", "del"}}
    assert layout.segment_files(6, cold=False) == {}
    assert layout.topic_ids(cold=False) == layout.topic_ids(cold=True) == [5]
