"""The server's id, once told, stays: in both roots, whatever the crash."""

import pytest

from driftq.storage.layout import Layout
from driftq.storage.server_id import mark_cold_root, settle_server_id
from driftq.system.disk import Disk, Site
from driftq.testing import CrashMode, OrderCheckingDisk, SeededEntropy, SimDisk

pytestmark = pytest.mark.crash


def _told(disk: Disk, seed: int, data: str = "/data") -> str:
    """What a manifest says."""
    layout = Layout(disk, data, "/cold")
    found = settle_server_id(layout, SeededEntropy(seed))
    mark_cold_root(layout, found)
    return found


@pytest.mark.parametrize("mode", CrashMode)
def test_an_id_that_was_told_is_there_after_a_crash(mode: CrashMode) -> None:
    disk = SimDisk(["/data", "/cold"])
    first = _told(OrderCheckingDisk(disk), 1)
    after = disk.crash(mode, 3)
    assert _told(after, 2) == first
    for root in ("/data", "/cold"):
        assert after.open(f"{root}/.driftq.id").pread(100, 0).decode() == f"{first}\n"


def test_a_crash_at_any_call_leaves_an_id_that_stays() -> None:
    images: list[SimDisk] = []
    disk = SimDisk(["/data", "/cold"])
    disk.on_call = lambda _, __: images.append(disk.fork())
    _told(disk, 1)
    for number, image in enumerate(images):
        for mode in CrashMode:
            crashed = image.crash(mode, number)
            first = _told(crashed, 2)
            assert _told(crashed.crash(mode, 1), 3) == first


def test_without_its_sync_an_id_would_be_lost() -> None:
    disk = SimDisk(["/data", "/cold"], ignore=Site.SERVER_ID)
    first = _told(disk, 1)
    assert any(_told(disk.crash(mode, seed), 2) != first for mode in CrashMode for seed in range(8))


def test_two_servers_differ_and_a_cold_root_of_another_is_told_anew() -> None:
    disk = SimDisk(["/data", "/cold", "/other"])
    first = _told(disk, 1)
    other = _told(disk, 2, "/other")
    assert first != other
    assert disk.open("/cold/.driftq.id").pread(100, 0).decode().strip() == other
