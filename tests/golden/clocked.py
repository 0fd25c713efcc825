"""A data directory whose wall clock was wrong for a while: before the checkpoint, and after it."""

from typing import Any

from msgspec import structs

from driftq.config import Settings
from driftq.testing import EngineRig, ManualClock, SimDisk
from driftq.testing.engine_rig import SMALL

FORMAT = 1
SETTINGS: Settings = structs.replace(SMALL, wal_file_bytes=8 << 10)
DAY = 86_400_000
STARTED_MS = 1_700_000_000_000
ENDED_MS = STARTED_MS + 5020
"""The wall clock at the end of the run, and when it is opened."""


class ClockedRig(EngineRig):
    """An engine that is opened at the time at which the run ended."""

    def __init__(self, disk: SimDisk, wall_ms: int = ENDED_MS) -> None:
        super().__init__(SETTINGS, disk=disk, clock=ManualClock(wall_ms))


def build() -> ClockedRig:
    """Make the run, which ends without a stop."""
    rig = ClockedRig(SimDisk(roots=("/data", "/cold")), STARTED_MS)
    rig.put("aging", ttl_ms=60_000)
    rig.write("aging", "before")
    rig.clock.set_wall(STARTED_MS + DAY)
    rig.write("aging", "a day ahead")
    rig.clock.set_wall(STARTED_MS)
    rig.runtime.advance(1000)
    rig.checkpoint()
    rig.write("aging", "right again")
    rig.runtime.advance(1000)
    rig.clock.set_wall(STARTED_MS - DAY)
    rig.write("aging", "a day behind")
    rig.runtime.advance(2000)
    rig.clock.set_wall(STARTED_MS + 4000)
    rig.write("aging", "right once more")
    rig.runtime.advance(1020)
    return rig


def picture(rig: ClockedRig) -> dict[str, Any]:
    """What readers find, and how old each record is."""
    time, (records, _) = rig.engine.time, rig.walk("aging")
    return {
        "offset": time.offset,
        "running": time.running(),
        "records": records,
        "ages": [time.age(record["$ts"]) for record in records],
        "bends": list(time.timeline.points),
    }
