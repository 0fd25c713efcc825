"""What damage may have cost, and what it cannot have."""

import pytest

from driftq.storage.wal.wal_head import COPY_BYTES, HEAD_BYTES
from driftq.system.disk import Site
from driftq.testing import CrashMode, EngineRig


def _busy_and_quiet() -> EngineRig:
    """Two topics; only one is written to in the newest WAL file."""
    rig = EngineRig()
    for name in ("quiet", "busy"):
        rig.put(name)
        rig.write(name, 1)
    rig.restart()
    for number in range(3):
        rig.write("busy", number)
    return rig


def _overwrite_newest(rig: EngineRig, place: int, size: int) -> None:
    file = rig.disk.open(f"/data/wal/{max(rig.disk.names('/data/wal'))}")
    file.pwritev([b"\xff" * size], place)
    file.sync(Site.WAL_COMMIT)


@pytest.mark.parametrize("place", [0, COPY_BYTES])
def test_one_damaged_copy_of_a_head_costs_nothing(place: int) -> None:
    """proves: G-REC-6"""
    rig = _busy_and_quiet()
    _overwrite_newest(rig, place, COPY_BYTES)
    rig.crash(CrashMode.KEEP)
    assert rig.engine.recovered.damaged == 0
    assert rig.seqs("busy") == [1, 2, 3, 4]
    assert not rig.topic("quiet").holes.all


def test_a_file_whose_head_is_lost_is_damage_and_never_a_torn_end() -> None:
    """Without the salt nothing in the file is believed; every topic that may have lost records says so.

    proves: G-REC-2, G-TOMB-3
    """
    rig = _busy_and_quiet()
    _overwrite_newest(rig, 0, HEAD_BYTES)
    rig.crash(CrashMode.KEEP)
    assert (rig.engine.recovered.damaged, rig.engine.recovered.torn) == (1, 0)
    assert rig.seqs("busy") == [1]
    assert rig.topic("busy").holes.all
    assert rig.topic("quiet").holes.all
    holes = rig.topic("busy").holes.all
    rig.crash(CrashMode.KEEP)
    assert rig.topic("busy").holes.all == holes


def test_a_file_with_nothing_but_a_torn_head_is_unused() -> None:
    """A head is durable before anything follows it, so nothing was lost with it."""
    rig = _busy_and_quiet()
    name = f"/data/wal/wal-{1 + len(rig.disk.names('/data/wal')):016}.log"
    file = rig.disk.create(name)
    file.pwritev([b"\xff" * 100], 0)
    file.sync(Site.WAL_COMMIT)
    rig.crash(CrashMode.KEEP)
    assert rig.engine.recovered.damaged == 0
    assert not rig.topic("quiet").holes.all
