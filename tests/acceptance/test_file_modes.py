"""Who may read the files of a server: its user, and its group if the operator says so."""

import os
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.support.process import ServerProcess, serving
from tests.support.waiting import until

pytestmark = pytest.mark.slow

NOBODY = 65_534


def read_as(group: int, paths: list[Path]) -> subprocess.CompletedProcess[bytes]:
    """Read files as a user that owns nothing, with one group."""
    command = ["cat", *map(str, paths)]
    return subprocess.run(command, user=NOBODY, group=group, extra_groups=[], capture_output=True, check=False)


def modes_below(directory: Path) -> dict[str, int]:
    """Return the permission bits of the directory and of everything in it, by relative path."""
    paths = [directory, *directory.rglob("*")]
    return {str(path.relative_to(directory)): stat.S_IMODE(path.lstat().st_mode) for path in paths}


def fill(server: ServerProcess, tmp_path: Path) -> None:
    """Give the server files of every kind: segments in both tiers, a staged part, a checkpoint, a backup."""
    server.wait_ready()
    for _ in range(3):
        status, _ = server.ask("POST", "/v0/topics/t", {"records": [{"data": 1, "tag": "x"}] * 100})
        assert status in (200, 201)
    until(lambda: list((tmp_path / "cold").glob("topics/*/*.parquet")), bool)
    assert server.ask("POST", "/v0/backups", {})[0] == 202
    until(lambda: list((tmp_path / "backup").glob("backups/*/manifest.json")), bool)


def places(directory: Path) -> tuple[str, ...]:
    """Return the flags that name the cold directory and the backup directory."""
    return "--cold-dir", str(directory / "cold"), "--backup-dir", str(directory / "backup")


FLAGS = ("--segment-max-events", "100", "--hot-retain-segments", "1")


@pytest.mark.parametrize(
    ("flags", "file_mode", "directory_mode"), [((), 0o600, 0o700), (("--group-read",), 0o640, 0o750)]
)
def test_no_other_user_can_read_what_the_server_writes(
    tmp_path: Path, flags: tuple[str, ...], file_mode: int, directory_mode: int
) -> None:
    """The server is started with a umask that hides nothing."""
    before = os.umask(0)
    try:
        with serving(tmp_path, *places(tmp_path), *FLAGS, *flags) as server:
            fill(server, tmp_path)
            server.stop()
    finally:
        os.umask(before)
    for name in ("data", "cold", "backup"):
        for path, mode in modes_below(tmp_path / name).items():
            lock = path == ".driftq.lock"
            wanted = directory_mode if (tmp_path / name / path).is_dir() else 0o600 if lock else file_mode
            assert mode == wanted, (name, path, oct(mode))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_a_reader_in_place_of_the_servers_group_reads_segments_with_group_read() -> None:
    """The directory is not `tmp_path`, because pytest closes its parents to other users."""
    with (
        tempfile.TemporaryDirectory() as name,
        serving(Path(name), *places(Path(name)), *FLAGS, "--group-read") as server,
    ):
        Path(name).chmod(0o755)
        fill(server, Path(name))
        segments = [path for path in Path(name).rglob("seg-*") if path.suffix in (".data", ".parquet")]
        assert {path.suffix for path in segments} == {".data", ".parquet"}
        assert read_as(os.getegid(), segments).returncode == 0
        refused = read_as(NOBODY, segments)
    assert (refused.returncode, refused.stdout) == (1, b"")
    assert b"ermission denied" in refused.stderr


def test_a_lock_file_that_is_a_link_is_refused_and_its_target_keeps_its_content(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    target = tmp_path / "precious"
    target.write_text("keep me")
    (tmp_path / "data" / ".driftq.lock").symlink_to(target)
    with serving(tmp_path) as server:
        code, errors = server.ended()
    assert (code, errors.count("\n")) == (1, 1), errors
    assert "symbolic link" in errors
    assert target.read_text() == "keep me"
