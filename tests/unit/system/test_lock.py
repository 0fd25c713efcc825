"""The lock of a directory: who is waited for at a start, how long, and who is not."""

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from driftq.system import lock
from driftq.system.lock import LockHeldError, holders, take_lock, wait_for_orphans

GONE = 4_194_303
"""The highest process id of Linux, which hardly any process has."""


class Waiting:
    """A clock that moves while somebody sleeps on it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.on_sleep: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.on_sleep()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    waiting = Waiting()
    monkeypatch.setattr(lock, "time", waiting)
    return waiting


def held_for(path: Path, pid: int) -> int:
    """A handle that holds the lock, as a writer process does for the server that the file names."""
    path.write_bytes(b"pid=%d\n" % pid)
    fd = os.open(path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


@pytest.mark.parametrize("pid", [GONE, os.getpid()], ids=["gone", "own"])
def test_orphans_are_waited_for_and_not_for_ever(tmp_path: Path, clock: Waiting, pid: int) -> None:
    """A file with the id of this process is from an earlier one: in a container every server has the id 1."""
    path = tmp_path / "lock"
    orphan = held_for(path, pid)
    try:
        assert wait_for_orphans(str(path)) is False
        assert clock.now_s == pytest.approx(20, abs=0.1)
    finally:
        os.close(orphan)


def test_a_start_goes_on_as_soon_as_the_orphans_are_gone(tmp_path: Path, clock: Waiting) -> None:
    path = tmp_path / "lock"
    orphan = held_for(path, os.getpid())

    def end() -> None:
        if clock.now_s > 3:
            with suppress(OSError):
                os.close(orphan)

    clock.on_sleep = end
    assert wait_for_orphans(str(path)) is True
    assert clock.now_s == pytest.approx(3, abs=0.1)
    take_lock(str(path), b"pid=1\n").release()


def test_a_lock_of_a_process_that_runs_is_not_waited_for(tmp_path: Path, clock: Waiting) -> None:
    path = tmp_path / "lock"
    other = held_for(path, os.getppid())
    try:
        with pytest.raises(LockHeldError):
            take_lock(str(path), b"")
    finally:
        os.close(other)
    assert clock.now_s == 0


def test_a_lock_that_this_process_holds_itself_is_not_waited_for(tmp_path: Path, clock: Waiting) -> None:
    path = str(tmp_path / "lock")
    mine = take_lock(path, b"pid=%d\n" % os.getpid())
    with pytest.raises(LockHeldError):
        take_lock(path, b"")
    assert clock.now_s == 0
    mine.release()
    take_lock(path, b"").release()


def test_holders_are_other_processes(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    mine = held_for(path, os.getpid())
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    try:
        assert holders(str(path)) == [child]
    finally:
        os.close(writing)
        os.waitpid(child, 0)
        os.close(mine)
        os.close(reading)
    assert holders(str(path)) == []
