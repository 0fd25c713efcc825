"""The real disk: what the protocol promises, on the operating system's files."""

import ctypes
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from driftq.system import disk
from driftq.system.disk import Disk, OsDisk, OsFile, Site, read_file, write_fully, write_zeros
from driftq.system.lock import LockHeldError
from driftq.testing import SimDisk


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "a")


@pytest.fixture
def file(path: str) -> Iterator[OsFile]:
    file = OsDisk().create(path)
    yield file
    file.close()


class _Stingy:
    """A file that takes at most so many bytes at a time, and remembers how many buffers it was offered."""

    def __init__(self, inner: OsFile, bytes_max: int) -> None:
        self._inner = inner
        self._bytes_max = bytes_max
        self.offered: list[int] = []
        self.pread = inner.pread
        self.pread_into = inner.pread_into
        self.pread_nowait = inner.pread_nowait
        self.sync = inner.sync
        self.write_out = inner.write_out
        self.truncate = inner.truncate
        self.size = inner.size
        self.close = inner.close

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> int:
        self.offered.append(len(buffers))
        data = b"".join(buffers)[: self._bytes_max]
        return self._inner.pwritev([data], offset)


# --- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "raises"), [(errno.EIO, True), (errno.ENOSPC, True), (errno.EINVAL, False)])
def test_an_error_that_the_kernel_says_once_is_not_passed_over(
    file: OsFile, monkeypatch: pytest.MonkeyPatch, code: int, *, raises: bool
) -> None:
    """A failed write-back is reported to whoever waits for it first, and to no sync behind it."""

    def failed(*_: object) -> int:
        ctypes.set_errno(code)
        return -1

    file.write_out()
    monkeypatch.setattr(disk, "_sync_file_range", failed)
    with pytest.raises(OSError, match=os.strerror(code)) if raises else nullcontext():
        file.write_out()


def test_a_file_reads_back_what_was_written_at_its_offsets(file: OsFile) -> None:
    assert file.pwritev([b"abc", b"def"], 0) == 6
    assert file.pwritev([b"XY"], 8) == 2
    assert file.pread(100, 0) == b"abcdef\0\0XY"
    assert file.pread(2, 4) == b"ef"
    assert file.pread(5, 10) == b""
    assert file.size() == 10


def test_a_read_goes_on_until_it_has_all(file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.pwritev([b"abcdefgh"], 0)
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: real(fd, min(size, 3), offset))
    assert file.pread(8, 0) == b"abcdefgh"
    assert file.pread(100, 2) == b"cdefgh"


def test_a_read_into_a_view_goes_on_until_it_is_full_or_the_file_ends(
    file: OsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.pwritev([b"abcdefgh"], 0)
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, offset: real(fd, [views[0][:3]], offset))
    buffer = bytearray(10)
    assert file.pread_into(memoryview(buffer)[:7], 1) == 7
    assert buffer == b"bcdefgh\0\0\0"
    assert file.pread_into(memoryview(buffer), 3) == 5
    assert buffer == b"defghgh\0\0\0"
    assert file.pread_into(memoryview(buffer), 8) == 0


def test_truncate_cuts_and_extends_with_zeros(file: OsFile) -> None:
    file.pwritev([b"abcdef"], 0)
    file.truncate(2)
    file.truncate(4)
    assert file.pread(10, 0) == b"ab\0\0"


def test_sync_and_close_work_and_close_works_twice(file: OsFile) -> None:
    file.sync(Site.WAL_COMMIT)
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.size()


def test_a_read_that_may_not_wait_is_right_or_nothing(file: OsFile) -> None:
    file.pwritev([b"abcdef"], 0)
    # Which of the two depends on the file system; tmpfs and some overlays know no such reads.
    assert file.pread_nowait(3, 2) in (b"cde", None)
    assert file.pread_nowait(3, 5) is None


def test_a_read_that_may_not_wait_is_whole_or_nothing(file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def preadv(fd: int, buffers: list[bytearray], offset: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        buffers[0][:3] = b"cde"
        return 3

    monkeypatch.setattr(os, "preadv", preadv)
    assert file.pread_nowait(3, 2) == b"cde"
    assert file.pread_nowait(4, 2) is None


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL])
def test_bytes_that_are_not_in_memory_are_no_error(file: OsFile, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(os, "preadv", _failing(code))
    assert file.pread_nowait(3, 0) is None


def test_a_broken_device_is_an_error(file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "preadv", _failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        file.pread_nowait(3, 0)


def _failing(code: int) -> Callable[..., int]:
    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    return fail


# --- whole writes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bytes_max", [1, 2, 3, 5, 100])
def test_a_short_write_is_gone_on_with(file: OsFile, bytes_max: int) -> None:
    assert write_fully(_Stingy(file, bytes_max), [b"ab", b"", b"cde", b"f"], 4) == 10
    assert file.pread(100, 4) == b"abcdef"


def test_more_buffers_than_one_call_can_take_are_written_in_several(file: OsFile) -> None:
    stingy = _Stingy(file, 1 << 20)
    buffers = [b"%04d" % number for number in range(2_500)]
    assert write_fully(stingy, buffers, 0) == 10_000
    assert stingy.offered == [1_024, 1_024, 452]
    assert file.pread(20_000, 0) == b"".join(buffers)


def test_a_device_that_takes_nothing_is_an_error_not_a_loop(file: OsFile) -> None:
    with pytest.raises(OSError, match="took no bytes"):
        write_fully(_Stingy(file, 0), [b"abc"], 0)


def test_writing_no_buffers_is_no_call(file: OsFile) -> None:
    stingy = _Stingy(file, 0)
    assert write_fully(stingy, [], 7) == 7
    assert stingy.offered == []


def test_zeros_fill_a_range_and_leave_the_rest(file: OsFile) -> None:
    file.pwritev([b"x" * 20], 0)
    write_zeros(file, 5, 10)
    assert file.pread(100, 0) == b"x" * 5 + bytes(5) + b"x" * 10
    write_zeros(file, 20, 3_000_000)
    assert file.size() == 3_000_000
    assert file.pread(3_000_000, 20) == bytes(3_000_000 - 20)


# --- directories --------------------------------------------------------------------------------------------------


def test_create_cuts_open_does_not_and_misses_a_missing_file(path: str) -> None:
    disk = OsDisk()
    with pytest.raises(FileNotFoundError):
        disk.open(path)
    first = disk.create(path)
    write_fully(first, [b"abc"], 0)
    first.close()
    disk.open(path).close()
    assert read_file(disk, path) == b"abc"
    disk.create(path).close()
    assert read_file(disk, path) == b""


def test_directories_are_made_once_listed_sorted_and_synced(tmp_path: Path) -> None:
    disk = OsDisk()
    top = f"{tmp_path}/t"
    assert disk.names(top) == []
    assert disk.mkdir(top)
    assert not disk.mkdir(top)
    for name in ("b", "a", "c"):
        disk.create(f"{top}/{name}").close()
    assert disk.names(top) == ["a", "b", "c"]
    disk.sync_dir(top, Site.SEGMENT_DIR)
    with pytest.raises(FileNotFoundError):
        disk.sync_dir(f"{top}/missing", Site.SEGMENT_DIR)
    with pytest.raises(FileNotFoundError):
        disk.mkdir(f"{top}/missing/d")
    disk.remove_tree(top)
    disk.remove_tree(top)
    assert not disk.exists(top)


def test_rename_replaces_and_unlink_forgives(path: str) -> None:
    disk = OsDisk()
    for name, data in ((path, b"old"), (f"{path}.tmp", b"new")):
        file = disk.create(name)
        write_fully(file, [data], 0)
        file.close()
    disk.rename(f"{path}.tmp", path)
    assert read_file(disk, path) == b"new"
    assert not disk.exists(f"{path}.tmp")
    disk.unlink(path)
    disk.unlink(path)
    assert not disk.exists(path)


# --- lock ---------------------------------------------------------------------------------------------------------

_HOLDER = """
import sys
import threading
import time
from driftq.system.disk import OsDisk
lock = OsDisk().lock(sys.argv[1], b"the other process")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_of_another_process_holds_until_that_dies(path: str) -> None:
    disk = OsDisk()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LockHeldError):
            disk.lock(path, b"this process")
        assert read_file(disk, path) == b"the other process"
        holder.kill()
        holder.wait()
    disk.lock(path, b"me").release()
    assert read_file(disk, path) == b"me"


def test_a_lock_has_one_holder_in_one_process_too(path: str) -> None:
    disk = OsDisk()
    lock = disk.lock(path, b"1")
    with pytest.raises(LockHeldError):
        disk.lock(path, b"2")
    lock.release()
    lock.release()
    disk.lock(path, b"2").release()


def test_a_lock_that_cannot_be_tried_is_another_error(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcntl.flock", _failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output") as caught:
        OsDisk().lock(path, b"")
    assert not isinstance(caught.value, LockHeldError)


@pytest.mark.parametrize("disk", [OsDisk(), SimDisk()])
def test_both_disks_are_disks(disk: Disk) -> None:
    assert disk.names("/nowhere") == []


def test_a_lock_whose_owner_is_gone_is_waited_for(tmp_path: Path) -> None:
    """As its writer processes have it, which end when they have written what they were sent."""
    path = str(tmp_path / "lock")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    hold = (
        "import sys; from driftq.system.disk import OsDisk;"
        "held = OsDisk().lock(sys.argv[1], sys.argv[2].encode()); print(flush=True); sys.stdin.read()"
    )
    orphan = subprocess.Popen(
        [sys.executable, "-c", hold, path, f"pid={gone.pid}\n"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert orphan.stdin is not None
    assert orphan.stdout is not None
    orphan.stdout.readline()
    ending = threading.Timer(0.1, orphan.stdin.close)
    ending.start()
    OsDisk().lock(path, b"").release()
    ending.join()
    assert orphan.wait() == 0
    orphan.stdout.close()


def test_a_lock_whose_owner_runs_is_not_waited_for(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    held = OsDisk().lock(path, b"pid=%d\n" % os.getppid())
    began = time.monotonic()
    with pytest.raises(LockHeldError):
        OsDisk().lock(path, b"")
    assert time.monotonic() - began < 5
    held.release()
