"""Fakes that ship with the package and are tested: clock, event loop, and disks that crash, fail and check order.

Also rigs that set up an engine or a server in one line, and a model to compare them with.
"""

from driftq.testing.disk_faults import SHORT, FaultyDisk
from driftq.testing.engine_rig import SMALL, EngineRig, decoded, rows_of
from driftq.testing.manual_clock import ManualClock
from driftq.testing.manual_runtime import ManualRuntime, ManualTimer, ManualWorker
from driftq.testing.seeded_entropy import SeededEntropy
from driftq.testing.server_rig import Asked, KeptSink, ServerRig, decoded_reply, settled
from driftq.testing.simulated_disk import Crashed, CrashMode, SimDisk, SimFile, SimLock
from driftq.testing.sync_order import OrderCheckingDisk
from driftq.testing.topic_oracle import (
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
