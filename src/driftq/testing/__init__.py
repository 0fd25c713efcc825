"""Fakes that ship with the package and are tested themselves: clock, loop, disks that crash, fail and watch order.

And what tests of an engine or a server begin with: one that is built in a line, and a model to compare it with.
"""

from driftq.testing.build import SMALL, EngineRig, decoded, rows_of
from driftq.testing.clock import ManualClock
from driftq.testing.disk import Crashed, CrashMode, SimDisk, SimFile, SimLock
from driftq.testing.entropy import SeededEntropy
from driftq.testing.faults import SHORT, FaultyDisk
from driftq.testing.oracle import (
    OracleDelete,
    OracleFound,
    OracleKey,
    OracleOp,
    OraclePage,
    OraclePut,
    OracleRecord,
    OracleRow,
    OracleState,
    OracleTopic,
    OracleWrite,
)
from driftq.testing.order import OrderCheckingDisk
from driftq.testing.runtime import ManualRuntime, ManualTimer, ManualWorker
from driftq.testing.wire import Asked, KeptSink, ServerRig, decoded_reply, settled

__all__ = [
    "SHORT",
    "SMALL",
    "Asked",
    "CrashMode",
    "Crashed",
    "EngineRig",
    "FaultyDisk",
    "KeptSink",
    "ManualClock",
    "ManualRuntime",
    "ManualTimer",
    "ManualWorker",
    "OracleDelete",
    "OracleFound",
    "OracleKey",
    "OracleOp",
    "OraclePage",
    "OraclePut",
    "OracleRecord",
    "OracleRow",
    "OracleState",
    "OracleTopic",
    "OracleWrite",
    "OrderCheckingDisk",
    "SeededEntropy",
    "ServerRig",
    "SimDisk",
    "SimFile",
    "SimLock",
    "decoded",
    "decoded_reply",
    "rows_of",
    "settled",
]
