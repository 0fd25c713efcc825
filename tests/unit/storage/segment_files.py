"""A sealed hot segment as real files, for readers in other processes."""

from pathlib import Path

from driftq.system.disk import read_file
from driftq.testing import EngineRig

_ROWS = 4000


def sealed_segment(path: Path) -> int:
    """Write `.data` and `.idx` of a segment of several blocks, its first seq is 1. Return the number of rows."""
    rig = EngineRig(segment_max_events=_ROWS, wal_file_bytes=1 << 20)
    rig.put("t")
    for first in range(0, _ROWS, 500):
        rig.write("t", *range(first, first + 500))
    assert rig.checkpoint()
    path.parent.mkdir(parents=True, exist_ok=True)
    for suffix in (".data", ".idx"):
        content = read_file(rig.disk, f"/data/topics/00000001/seg-0000000000000001{suffix}")
        path.with_suffix(suffix).write_bytes(content)
    return _ROWS
