"""A backup that is said to be done survives a power loss, and one that is not is none."""

import pytest

from driftq.errors import NotFoundError, StartError
from driftq.features.backup.restore import Restore
from driftq.model.topic_config import Durability
from driftq.storage.layout import Layout
from driftq.system.disk import Site
from driftq.system.entropy import SystemEntropy
from driftq.testing import CrashMode, SimDisk
from tests.unit.offline.life import Life

pytestmark = pytest.mark.crash

_ROOTS = ("/data", "/cold", "/to", "/new", "/newcold")


def _backed_up(ignore: Site | None) -> tuple[Life, SimDisk]:
    disk = SimDisk(roots=_ROOTS, ignore=ignore)
    life = Life(disk)
    life.put("t", Durability.FSYNC)
    for number in range(20):
        life.write("t", number)
    backup = life.server.backups.begin("/to", "server")
    life.runtime.run_until_idle()
    assert backup.state == "done"
    return life, disk


def _restored(disk: SimDisk) -> int:
    Restore(disk, "/to", Layout(disk, "/new", "/newcold"), SystemEntropy()).run()
    return len(Life(disk, data_dir="/new", cold_dir="/newcold").picture()["t"])


@pytest.mark.parametrize("mode", list(CrashMode))
def test_a_backup_that_is_done_survives_a_power_loss(mode: CrashMode) -> None:
    life, disk = _backed_up(None)
    assert life.server.server_id
    for seed in range(3):
        assert _restored(disk.crash(mode, seed)) == 20


@pytest.mark.parametrize("ignore", [None, Site.BACKUP_FILE, Site.SEGMENT_DIR], ids=str)
def test_what_was_restored_survives_a_power_loss_by_its_syncs(ignore: Site | None) -> None:
    _, disk = _backed_up(None)
    disk.ignore = ignore
    Restore(disk, "/to", Layout(disk, "/new", "/newcold"), SystemEntropy()).run()
    disk.ignore = None
    shown = Life(disk.crash(CrashMode.DROP, 0), data_dir="/new", cold_dir="/newcold").picture()["t"]
    assert (len(shown) == 20) == (ignore is None)


def test_without_its_sync_it_would_not() -> None:
    _, disk = _backed_up(Site.BACKUP_FILE)
    with pytest.raises((StartError, NotFoundError)):
        _restored(disk.crash(CrashMode.DROP, 0))
