"""How full the disk is, and how quickly it fills."""

import pytest

from driftq.engine.load.disk_forecast import KNOWN_NS, LOOKS_MAX, SpaceWatch
from driftq.system.machine import DiskUsage, space_at
from driftq.testing import ManualClock

MINUTE_MS = 60_000


class Disk:
    """A file system that is asked."""

    def __init__(self) -> None:
        self.free = 1000 << 20
        self.broken = False

    def __call__(self, path: str) -> DiskUsage:
        if self.broken:
            raise OSError(5, "Input/output error", path)
        return DiskUsage(self.free, 2000 << 20)


def speed(watch: SpaceWatch) -> float:
    found = watch.fill_bytes_per_s
    assert found is not None
    return found


def test_the_speed_is_that_of_the_last_hour_and_not_known_before_five_minutes() -> None:
    clock, disk = ManualClock(), Disk()
    watch = SpaceWatch(clock, "/data", disk)
    assert (watch.last, watch.fill_bytes_per_s) == (None, None)
    watch.look()
    clock.advance(KNOWN_NS // 1_000_000 - 1)
    watch.look()
    assert not watch.fill_bytes_per_s
    clock.advance(1)
    disk.free -= 300 << 20
    watch.look()
    assert speed(watch) == pytest.approx(1 << 20)
    for _ in range(LOOKS_MAX):
        clock.advance(5000)
        watch.look()
    assert speed(watch) == 0
    disk.free += 100 << 20
    clock.advance(5000)
    watch.look()
    assert speed(watch) < 0


def test_a_file_system_that_does_not_answer_is_not_a_failure() -> None:
    disk = Disk()
    watch = SpaceWatch(ManualClock(), "/data", disk)
    watch.look()
    disk.broken = True
    watch.look()
    assert watch.last is None


def test_a_real_file_system_says_how_full_it_is() -> None:
    found = space_at("/")
    assert 0 <= found.free <= found.total
    assert found.total > 0
