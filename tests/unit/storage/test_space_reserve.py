"""How large the file is that takes space for a checkpoint."""

from driftq.model.limits import MIB
from driftq.storage.layout import Layout
from driftq.storage.space_reserve import SpaceReserve
from driftq.testing import SimDisk


def _made(disk: SimDisk) -> SpaceReserve:
    layout = Layout(disk, "/data")
    layout.prepare()
    return SpaceReserve(layout, MIB)


def test_it_is_extended_at_once_and_cut_only_when_it_is_much_too_large() -> None:
    disk = SimDisk(["/data"])
    reserve = _made(disk)
    sizes = []
    for wanted in (0, 8 * MIB, 4 * MIB, 2 * MIB, MIB, 0):
        assert reserve.keep(wanted)
        assert reserve.is_whole
        sizes.append(reserve.size)
        assert disk.open("/data/.driftq.reserve").size() == reserve.size
    assert sizes == [MIB, 8 * MIB, 8 * MIB, 8 * MIB, MIB, MIB]


def test_with_too_little_room_it_takes_one_checkpoint_before_it_leaves_anything_free() -> None:
    """proves: G-IO-13"""
    disk = SimDisk(["/data"])
    reserve = _made(disk)
    free = 3 * MIB
    disk.space = disk.used_bytes() + free
    assert not reserve.keep(4 * MIB)
    assert (reserve.is_whole, reserve.size) == (True, 2 * MIB)
    assert not reserve.keep(8 * MIB)
    assert (reserve.is_whole, reserve.size) == (False, free)


def test_after_a_failed_overwrite_its_size_is_known() -> None:
    disk = SimDisk(["/data"])
    reserve = _made(disk)
    reserve.keep(0)
    assert reserve.lend("/data/meta/x.tmp", "/data/meta")
    assert reserve.size == 0
    reserve.take_back("/data/meta/x.tmp", "/data/meta")
    assert (reserve.size, disk.names("/data/meta")) == (MIB, [])
