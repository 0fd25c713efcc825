"""Fakes that ship with the package and are tested themselves: clock, loop, disks that crash, fail and watch order."""

from driftq.testing.clock import ManualClock
from driftq.testing.disk import Crashed, CrashMode, SimDisk, SimFile, SimLock
from driftq.testing.entropy import SeededEntropy
from driftq.testing.faults import SHORT, FaultyDisk
from driftq.testing.order import OrderCheckingDisk
from driftq.testing.runtime import ManualRuntime, ManualTimer, ManualWorker

__all__ = [
    "SHORT",
    "CrashMode",
    "Crashed",
    "FaultyDisk",
    "ManualClock",
    "ManualRuntime",
    "ManualTimer",
    "ManualWorker",
    "OrderCheckingDisk",
    "SeededEntropy",
    "SimDisk",
    "SimFile",
    "SimLock",
]
