"""The directory where Spark and its Python processes meet: this user's alone, and there for as long as they are."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.spark import socket_directory as sockets


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go; its path is short enough for sockets, whatever that of the test is."""
    monkeypatch.setattr(sockets, "LONGEST", len(str(tmp_path)) + 100)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    sockets.socket_directory.cache_clear()
    yield tmp_path
    sockets.socket_directory.cache_clear()


def root(temporary: Path) -> Path:
    """What all processes of this user share."""
    return temporary / f"driftq-spark-{os.getuid()}"


def made() -> sockets.SocketDirectory:
    """The directory of a process that has just been started."""
    sockets.socket_directory.cache_clear()
    found = sockets.socket_directory()
    assert found is not None
    return found


def test_a_process_has_one_that_is_closed_to_others(temporary: Path) -> None:
    found = made()
    assert found.place.parent == root(temporary)
    assert {path.stat().st_mode & 0o777 for path in (found.place, root(temporary))} == {0o700}
    assert sockets.socket_directory() is found
    assert sockets.inherited() == (found.lock,)


def test_one_whose_processes_are_gone_is_removed_by_the_next(temporary: Path) -> None:
    left = made()
    (left.place / ".left.sock").touch()
    os.close(left.lock)
    fresh = made()
    assert list(root(temporary).iterdir()) == [fresh.place]


def test_one_stays_for_as_long_as_a_process_that_inherited_it(temporary: Path) -> None:
    kept = made()
    heir = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=(kept.lock,)
    )
    os.close(kept.lock)
    made()
    assert kept.place.exists()
    heir.communicate()
    made()
    assert not kept.place.exists()


def test_none_is_used_where_others_may_enter(temporary: Path) -> None:
    root(temporary).mkdir()
    root(temporary).chmod(0o750)
    assert sockets.socket_directory() is None
    assert sockets.inherited() == ()


def test_none_is_used_behind_a_link(temporary: Path) -> None:
    (temporary / "elsewhere").mkdir(mode=0o700)
    root(temporary).symlink_to(temporary / "elsewhere")
    assert sockets.socket_directory() is None


def test_none_of_another_user_is_used(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.getuid() + 1
    (temporary / f"driftq-spark-{other}").mkdir(mode=0o700)
    monkeypatch.setattr("os.getuid", lambda: other)
    assert sockets.socket_directory() is None


def test_without_a_place_for_temporary_files_there_is_none(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(temporary / "missing"))
    assert sockets.socket_directory() is None


def test_none_is_used_whose_path_is_too_long_for_a_socket(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = len(str(made().place)) + len("/.00000000-0000-0000-0000-000000000000.sock")
    monkeypatch.setattr(sockets, "LONGEST", whole)
    assert made()
    monkeypatch.setattr(sockets, "LONGEST", whole - 1)
    sockets.socket_directory.cache_clear()
    assert sockets.socket_directory() is None


def test_a_directory_for_temporary_files_is_private(temporary: Path) -> None:
    (temporary / f"driftq-x-{os.getuid()}").mkdir(mode=0o755)
    found = sockets.private_directory("driftq-x")
    assert found.stat().st_mode & 0o777 == 0o700
    assert sockets.private_directory("driftq-y").stat().st_mode & 0o777 == 0o700


def test_a_directory_that_is_a_link_of_somebody_is_refused(temporary: Path) -> None:
    (temporary / "elsewhere").mkdir()
    (temporary / f"driftq-x-{os.getuid()}").symlink_to(temporary / "elsewhere")
    with pytest.raises(PipelineError, match="is not a directory of this user"):
        sockets.private_directory("driftq-x")
