"""A data directory whose server was killed alone: a checkpoint with an upper bound of a loss, and a drained log."""

from driftq.model.topic_config import Durability
from driftq.testing import SimDisk
from driftq.testing.engine_rig import EngineRig
from tests.golden.directory import SETTINGS

FORMAT = 1


def build() -> EngineRig:
    """The runs: one that a power loss ends, one that is killed."""
    rig = EngineRig(SETTINGS, disk=SimDisk(roots=("/data", "/cold")), seed=1)
    rig.put("t.lossy", Durability.DISK)
    rig.write("t.lossy", 1, 2)
    rig.crash()
    rig.put("t.disk", Durability.DISK)
    rig.write("t.lossy", 3)
    rig.write("t.disk", 1)
    rig.checkpoint()
    rig.write("t.disk", "acked when it was handed over")
    rig.drain()
    return rig
