"""A data directory whose log names spans: records of class `memory`, which a start loads when it is ready."""

from driftq.model.topic_config import Durability
from driftq.testing import SimDisk
from driftq.testing.engine_rig import EngineRig
from tests.golden.directory import SETTINGS

FORMAT = 1
_RECORDS = 60


def build() -> EngineRig:
    """One run that is killed: the log writer names what it has noted, and says that the log is complete."""
    rig = EngineRig(SETTINGS, disk=SimDisk(roots=("/data", "/cold")), seed=1, wal_file_bytes=64 << 10)
    rig.put("t.memory", Durability.MEMORY, cap_records=50)
    rig.put("t.fsync", Durability.FSYNC)
    for number in range(_RECORDS):
        rig.write("t.memory", number, key=f"key-{number}" if number % 20 == 0 else None)
    rig.write("t.fsync", "behind the span")
    rig.drain()
    return rig
