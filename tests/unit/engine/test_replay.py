"""What damage may have cost, and what it cannot have."""

from driftq.seam.disk import Site
from driftq.testing import CrashMode, EngineRig


def test_the_first_frame_of_a_file_was_no_record() -> None:
    """Damage that is no larger than it makes no hole; a byte more might be a record.

    proves: G-REC-2
    """
    for size, may_be_lost in ((80, False), (81, True)):
        rig = EngineRig()
        for name in ("quiet", "busy"):
            rig.put(name)
            rig.write(name, 1)
        rig.restart()
        for number in range(3):
            rig.write("busy", number)
        newest = f"/data/wal/{max(rig.disk.names('/data/wal'))}"
        file = rig.disk.open(newest)
        file.pwritev([b"\xff" * size], 0)
        file.sync(Site.WAL_COMMIT)
        rig.crash(CrashMode.KEEP)
        assert rig.engine.recovered.damaged == 1
        assert bool(rig.topic("quiet").holes.all) == may_be_lost
