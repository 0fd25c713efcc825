"""A data directory of queues: leases in the checkpoint, lease frames behind it, dead letters."""

from typing import Any

from msgspec import structs

from driftq.config import Settings
from driftq.model.topic_config import Durability
from driftq.testing import SimDisk
from driftq.testing.engine_rig import SMALL
from tests.unit.features.queue.rig import LONG_MS, QueueRig

FORMAT = 1
SETTINGS: Settings = structs.replace(SMALL, wal_file_bytes=8 << 10)


class LeasedRig(QueueRig):
    """An engine with queues."""

    def __init__(self, disk: SimDisk) -> None:
        super().__init__(settings=SETTINGS, disk=disk)


def build() -> LeasedRig:
    """The run; it ends without a word."""
    rig = LeasedRig(SimDisk(roots=("/data", "/cold")))
    rig.queue("sure", jobs=12, leases_durable=True, max_deliveries=2, dead_letter="dead")
    rig.queue("plain", jobs=3, max_deliveries=1, dead_letter="dead")
    rig.queue("late", jobs=4, durability=Durability.DISK)
    rig.claimed("plain")
    rig.nack("plain", 1)
    rig.claimed("plain")
    rig.claimed("sure", limit=3, node="größe")
    rig.nack("sure", 1, node="größe")
    rig.claimed("sure", node="b")
    rig.nack("sure", 2, node="größe", delay_ms=LONG_MS)
    rig.claimed("late", limit=2)
    rig.checkpoint()
    rig.claimed("sure", limit=3, node="c", lease_ms=1000)
    rig.extend("sure", 4, node="c")
    rig.ack("sure", 5, node="c")
    rig.runtime.advance(1001)
    rig.claimed("sure", limit=2, node="d")
    rig.nack("sure", 1, node="b")
    rig.claimed("sure", node="e")
    rig.put("late", Durability.DISK, type="queue", lease_ms=LONG_MS, leases_durable=True)
    rig.nack("late", 1)
    rig.runtime.advance(20)
    return rig


def picture(rig: LeasedRig) -> dict[str, Any]:
    """Who holds what, and what is left where."""
    names = ("sure", "plain", "late")
    return {
        "leases": {name: rig.projection(name) for name in names},
        "jobs": {name: rig.seqs(name) for name in names},
        "dead": rig.walk("dead")[0],
    }
