"""Files that a task cannot read: the rows come from the server, and where it cannot read them either the task fails."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from driftq.pipeline.server_connection import AnswerError, Wire
from driftq.pipeline.source import local_segments as in_place
from driftq.pipeline.source.read_columns import Projection
from driftq.pipeline.source.split_plan import Piece, PlannedSegment, Split
from driftq.pipeline.source.split_reader import Task, read_split
from driftq.system.hang_guard import Patience
from tests.unit.storage.segment_files import sealed_segment

FILE = "topics/00000001/seg-0000000000000011"


class _Unavailable(Wire):
    """A server that cannot read the records either."""

    def __init__(self) -> None:
        super().__init__("http://test", None)
        self.asked = 0

    def arrow(self, path: str, value: object) -> bytes:
        self.asked += 1
        raise AnswerError(503, "cold_unavailable", "records in the cold tier cannot be read now")


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    """Set at the end, so that no thread waits for ever."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("on_data_loss", ["fail", "rows", "skip"])
@pytest.mark.parametrize("tier", ["hot", "cold"])
@pytest.mark.parametrize("error", [errno.ENOENT, errno.EIO, errno.ESTALE, None], ids=str)
def test_a_file_that_cannot_be_read_fails_the_task_and_is_never_a_gap(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    hang: threading.Event,
    on_data_loss: str,
    tier: str,
    error: int | None,
) -> None:
    """proves: G-IO-8, G-IO-12"""
    (tmp_path / ".driftq.id").write_text("s\n", encoding="ascii")
    monkeypatch.setattr(in_place, "_patience", Patience(0.02))

    def failing(path: Path) -> bytes:
        if error is None:
            hang.wait()
        raise OSError(error or errno.EIO, "it fails", str(path))

    monkeypatch.setattr(Path, "read_bytes", failing)
    suffix = "data" if tier == "hot" else "parquet"
    segment = PlannedSegment(tier, f"{FILE}.{suffix}", 11, 20, 10)
    split = Split("t", 1, 1, "s", str(tmp_path), str(tmp_path), (Piece(11, 20, segment),), ())
    server = _Unavailable()
    task = Task(server, Projection(pa.schema([("seq", pa.int64())])), (), on_data_loss)
    with pytest.raises(AnswerError, match="cold tier cannot be read now"):
        list(read_split(task, split))
    assert server.asked == 1


def test_a_mount_that_hangs_in_the_middle_of_a_file_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hang: threading.Event
) -> None:
    """proves: G-IO-12"""
    rows = sealed_segment(tmp_path / FILE)
    (tmp_path / ".driftq.id").write_text("s\n", encoding="ascii")
    monkeypatch.setattr(in_place, "_patience", Patience(0.05))
    monkeypatch.setattr(in_place, "BATCH_ROWS", 1)
    segment = PlannedSegment("hot", f"{FILE}.data", 1, rows, rows)
    split = Split("t", 1, 1, "s", str(tmp_path), None, (), ())
    read = in_place.read(split, Piece(1, rows, segment), ["seq"])
    assert next(read).num_rows
    monkeypatch.setattr(os, "pread", lambda *_: hang.wait())
    with pytest.raises(in_place.Elsewhere):
        list(read)


def test_deleted_seqs_on_a_mount_that_hangs_are_read_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hang: threading.Event
) -> None:
    """proves: G-IO-12"""
    monkeypatch.setattr(in_place, "_patience", Patience(0.05))
    monkeypatch.setattr(Path, "read_bytes", lambda _: hang.wait())
    with pytest.raises(in_place.Elsewhere):
        in_place.dead_seqs(tmp_path / f"{FILE}.parquet", PlannedSegment("cold", FILE, 1, 2, 2), 1)
