"""An engine whose segment files cannot be read for a while."""

from typing import Any

from driftq.system.disk import Disk
from driftq.testing import EngineRig, FaultyDisk


class Fault:
    """While it is `on`, reads of files with this suffix fail."""

    def __init__(self, error: int, suffix: str = ".data") -> None:
        self.error = error
        self.on = False
        self.suffix = suffix

    def wrap(self, disk: Disk) -> Disk:
        """For an `EngineRig`."""
        return FaultyDisk(disk, error=self.error, forever=True, reads=True, when=self._strikes)

    def _strikes(self, operation: str, path: str) -> bool:
        return self.on and operation in ("open", "pread", "pread_nowait") and path.endswith(self.suffix)


def filled(fault: Fault, *, cold: bool = False, wal_shards: int = 1, **config: Any) -> EngineRig:
    """Three sealed segments of one block each, and nothing of the first two in memory."""
    rig = EngineRig(
        wrap=fault.wrap,
        segment_max_events=8,
        cache_bytes=1,
        cold_dir="/cold" if cold else None,
        hot_retain_segments=0,
        wal_shards=wal_shards,
    )
    rig.put("t", **config)
    for first in range(0, 24, 8):
        rig.clock.advance(10)
        rig.write("t", *range(first, first + 4), tags=["a", "b"] * 2)
        rig.clock.advance(10)
        rig.write("t", *range(first + 4, first + 8), tags=["a", "b"] * 2)
    rig.checkpoint()
    if cold:
        rig.runtime.advance(6000)
        assert [segment.cold for segment in rig.topic("t").segments] == [True] * 3
    return rig


def let_go(rig: EngineRig, name: str) -> None:
    """Forget the blocks of a topic, as a move to the cold tier does, though somebody holds them."""
    for segment in rig.topic(name).segments:
        rig.engine.blocks.forget(rig.topic(name).id, segment)
