"""`--reset-wal`: everything is moved, nothing is deleted, and nobody's directory is taken from under them."""

from pathlib import Path

import pytest

from driftq.cli.server.reset_wal import move_aside
from driftq.config import Settings
from driftq.errors import DataDirLockedError
from driftq.system.disk import OsDisk
from driftq.testing import ServerRig
from driftq.testing.manual_clock import ManualClock


def test_a_directory_that_is_not_there_is_nothing_to_move(tmp_path: Path) -> None:
    assert move_aside(Settings(data_dir=str(tmp_path / "data")), OsDisk(), ManualClock()) == []


def test_both_directories_get_names_that_nobody_has(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path / "data"), cold_dir=str(tmp_path / "cold"))
    clock = ManualClock()
    for content in ("first", "second"):
        for name in ("data", "cold"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "file").write_text(content, encoding="utf-8")
        moved = move_aside(settings, OsDisk(), clock)
        assert {(Path(one) / "file").read_text(encoding="utf-8") for one in moved} == {content}
    assert len(list(tmp_path.glob("*.bak.*"))) == 4
    assert not (tmp_path / "data").exists()


def test_a_directory_in_use_is_refused() -> None:
    rig = ServerRig()
    with pytest.raises(DataDirLockedError):
        move_aside(rig.settings, rig.disk, rig.clock)
