"""Files of segments that were given up: kept in `lost/` through every crash, as long as their topic and seqs."""

import pytest

from driftq.model.tombstone import Hole, Reason
from driftq.storage.layout import Layout
from driftq.storage.segments.lost_files import LostFiles
from driftq.system.disk import Site, read_file
from driftq.testing import CrashMode, EngineRig, SimDisk
from tests.unit.engine.unreadable import Fault, filled

pytestmark = pytest.mark.crash

FIRST = "topics/00000001/seg-0000000000000001"
HOLE = [Hole(1, 8, Reason.CORRUPTION)]


def damaged(*, cold: bool = False, **config: int) -> EngineRig:
    """Three segments of eight records, nothing in memory, and a wrong byte in the first."""
    rig = filled(Fault(0), cold=cold, **config)
    rig.restart()
    flip(rig.disk, f"/cold/{FIRST}.parquet" if cold else f"/data/{FIRST}.data")
    return rig


def flip(disk: SimDisk, path: str) -> None:
    """Change one byte of the payload for good."""
    file = disk.open(path)
    file.pwritev([bytes([file.pread(1, 100)[0] ^ 1])], 100)
    file.sync(Site.WAL_TIMER)


def kept(disk: SimDisk, *, cold: bool) -> bool:
    """Whether the first segment has all its files, in `topics/` or in `lost/`."""
    root, suffixes = ("/cold", ("parquet", "del")) if cold else ("/data", ("data", "idx"))
    return any(all(disk.exists(f"{root}/{place}{FIRST}.{suffix}") for suffix in suffixes) for place in ("", "lost/"))


@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
def test_a_segment_that_is_given_up_keeps_its_files_in_lost(*, cold: bool) -> None:
    """proves: G-SEG-9"""
    rig = damaged(cold=cold)
    path = f"{FIRST}.parquet" if cold else f"{FIRST}.data"
    root = "/cold" if cold else "/data"
    content = read_file(rig.disk, f"{root}/{path}")
    assert rig.seqs("t") == list(range(9, 25))
    assert rig.topic("t").holes.all == HOLE
    rig.runtime.advance(7000)
    for _ in range(3):
        assert not rig.disk.exists(f"{root}/{path}")
        assert read_file(rig.disk, f"{root}/lost/{path}") == content
        assert rig.engine.segment_files.lost.count() == (2 if cold else 3)
        rig.restart()
        rig.runtime.advance(7000)
    assert rig.topic("t").holes.all == HOLE


@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
def test_a_segment_that_a_start_finds_damaged_keeps_its_files_in_lost(*, cold: bool) -> None:
    """proves: G-SEG-9, G-SEG-6"""
    rig = filled(Fault(0), cold=cold)
    assert rig.close()
    path = f"/cold/{FIRST}.parquet" if cold else f"/data/{FIRST}.data"
    file = rig.disk.open(path)
    file.truncate(60)
    file.sync(Site.WAL_TIMER)
    rig.start()
    assert rig.topic("t").holes.all == HOLE
    rig.kill()
    assert rig.topic("t").holes.all == HOLE, "a crash before the next checkpoint changes nothing"
    rig.runtime.advance(7000)
    assert kept(rig.disk, cold=cold)
    assert not rig.disk.exists(path)


def test_lost_files_go_when_retention_has_passed_them() -> None:
    """proves: G-SEG-9"""
    rig = damaged(cap_records=24)
    rig.seqs("t")
    rig.runtime.advance(7000)
    rig.write("t", *range(8))
    rig.runtime.advance(7000)
    assert rig.engine.segment_files.lost.count() == 3, "no live record was taken yet"
    rig.write("t", 1)
    rig.runtime.advance(7000)
    assert (rig.topic("t").evict_floor, rig.engine.segment_files.lost.count()) == (10, 0)
    assert not kept(rig.disk, cold=False)


@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
def test_lost_files_go_with_their_topic(*, cold: bool) -> None:
    """proves: G-SEG-9"""
    rig = damaged(cold=cold)
    rig.seqs("t")
    rig.runtime.advance(7000)
    rig.run(rig.engine.delete_topic("t"))
    rig.runtime.advance(1000)
    assert rig.engine.segment_files.lost.count() == 0
    assert not kept(rig.disk, cold=cold)


@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
def test_a_crash_at_any_call_loses_no_file(*, cold: bool) -> None:
    """proves: G-SEG-9"""
    rig = damaged(cold=cold)
    images: list[SimDisk] = []
    rig.disk.on_call = lambda _, __: images.append(rig.disk.fork())
    rig.seqs("t")
    rig.runtime.advance(7000)
    rig.disk.on_call = None
    assert len(images) > 10
    for number, image in enumerate(images):
        for mode in CrashMode:
            disk = image.crash(mode, number)
            assert kept(disk, cold=cold), (number, mode)
            again = EngineRig(rig.settings, disk=disk, clock=rig.clock)
            assert again.seqs("t") == list(range(9, 25))
            again.runtime.advance(7000)
            assert kept(disk, cold=cold), (number, mode, "after a start")
            again.runtime.stop()


@pytest.mark.parametrize("site", [Site.LOST_DIR, Site.LOST_TOPIC_DIR], ids=str)
def test_without_its_sync_a_file_would_be_lost(site: Site) -> None:
    made = filled(Fault(0)).disk
    found = []
    for mode in CrashMode:
        for seed in range(8):
            disk = made.crash(CrashMode.KEEP, 0)
            disk.ignore = site
            LostFiles(Layout(disk, "/data")).keep(1, 1)
            disk.sync_dir("/data/topics/00000001", Site.SEGMENT_DIR)
            found.append(kept(disk.crash(mode, seed), cold=False))
    assert not all(found), f"nobody misses {site}"


def test_a_file_system_without_links_takes_a_rename(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = filled(Fault(0)).disk

    def link(old: str, new: str) -> None:
        raise PermissionError(1, "Operation not permitted", old)

    monkeypatch.setattr(disk, "link", link)
    LostFiles(Layout(disk, "/data")).keep(1, 1)
    assert kept(disk, cold=False)
    assert not disk.exists(f"/data/{FIRST}.data")
