"""Rows of a segment file for other programs, and what they get when the file cannot be read."""

import subprocess
import sys
from pathlib import Path

from tests.unit.storage.segment_files import sealed_segment

_READ = """
import os, sys
from pathlib import Path
import pyarrow as pa
from driftq.storage.segment_reader import UNREADABLE, FileChangedError, SegmentFile

path, rows, cut = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "cut"
batches = SegmentFile(path, rows, 1).hot_batches(1, rows, pa.schema([("seq", pa.int64()), ("data", pa.utf8())]))
found = next(batches).num_rows
if cut:
    os.truncate(path, 0)
try:
    print(found + sum(batch.num_rows for batch in batches))
except (FileChangedError, *UNREADABLE):
    print("unreadable")
"""


def _read(path: Path, rows: int, how: str) -> str:
    """Read a hot segment in a process of its own, which may crash."""
    done = subprocess.run(
        [sys.executable, "-c", _READ, str(path), str(rows), how], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"
    return done.stdout.strip()


def test_bytes_that_cannot_be_read_are_an_error_and_end_no_process(tmp_path: Path) -> None:
    """A file that is cut while it is read stands for a disk that fails: a mapped page of either raises SIGBUS.

    proves: G-IO-12
    """
    path = tmp_path / "seg-0000000000000001"
    rows = sealed_segment(path)
    assert _read(path.with_suffix(".data"), rows, "whole") == str(rows)
    assert _read(path.with_suffix(".data"), rows, "cut") == "unreadable"
