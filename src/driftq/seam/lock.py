"""The lock of a directory: one owner, and those who write for it.

An advisory lock on an open file, which other processes may hold with its owner (`fileno`). It is free when the last of
them has let go, so whoever finds it held for an owner that is gone waits for those who are still writing.
"""

import errno
import fcntl
import os
import time
from typing import Protocol

_ORPHANS_S = 20.0
"""So long the processes of a server that is gone have to end, which takes them a sync or two."""
_ORPHANS_POLL_S = 0.01


class LockHeldError(OSError):
    """Another process holds the lock."""


class Lock(Protocol):
    """A held lock; it dies with the process at the latest."""

    def release(self) -> None:
        """Let go."""
        ...

    def fileno(self) -> int:
        """A handle that another process can hold it by."""
        ...


class OsLock:
    """An advisory lock on an open descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        """Close the descriptor, and the lock with it, where no other process has it too."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def fileno(self) -> int:
        """The descriptor."""
        return self._fd


def take_lock(path: str, content: bytes) -> OsLock:
    """Take the lock, or raise LockHeldError. One whose owner is gone is waited for."""
    wait_for_orphans(path)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise LockHeldError(error.errno, "the lock is held", path) from None
        raise
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, content, 0)
    except OSError:
        os.close(fd)
        raise
    return OsLock(fd)


def wait_for_orphans(path: str) -> None:
    """Wait while a lock is held for a process that is gone, by those that write for it, and not for ever.

    Blocks, so a server does it before it has a loop.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return  # whoever takes the lock is told why
    try:
        until = time.monotonic() + _ORPHANS_S
        while time.monotonic() < until:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if _owner_lives(os.pread(fd, 64, 0)):
                    return
                time.sleep(_ORPHANS_POLL_S)
            else:
                return
    finally:
        os.close(fd)


def _owner_lives(content: bytes) -> bool:
    """Does the process run that a lock file names? One that nobody can be told of counts as running."""
    name, _, number = content.strip().partition(b"=")
    if name != b"pid" or not number.isdigit() or not int(number):
        return True
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    try:
        with open(f"/proc/{int(number)}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[:1] != [b"Z"]
    except OSError:
        return True
