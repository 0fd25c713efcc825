"""What crashes of the broker have in common: how it is recovered."""

import random
from typing import Any, ClassVar, Generic, TypeVar

from driftq.testing import ManualClock, SimDisk
from tests.crash.noted import SETTINGS, Image
from tests.unit.features.broker.rig import BrokerRig

N = TypeVar("N")


class KeptByBroker(Generic[N]):
    """`noted.Promises` of something in the broker, but for what it promises."""

    rig: ClassVar[type[BrokerRig]] = BrokerRig
    limits: ClassVar[dict[str, Any]] = {}

    def recovered(self, image: Image[N], disk: SimDisk, rng: random.Random) -> Any:
        """A broker on a disk that a crash left, with another number of shards."""
        clock = ManualClock(image.wall_ms)
        return self.rig(settings=SETTINGS, disk=disk, clock=clock, wal_shards=rng.choice((1, 2, 3)), **self.limits)

    def disk_of(self, rig: BrokerRig) -> SimDisk:
        """The disk it works on."""
        return rig.engine_rig.disk
