"""The lock of a directory: one owner, and those who write for it.

An advisory lock on an open file, which other processes may hold with its owner (`fileno`). It is free when the last of
them has let go, so whoever finds it held for an owner that is gone waits for those who are still writing.
"""

import errno
import fcntl
import os
import time
from contextlib import suppress
from typing import Protocol

ORPHANS_S = 20.0
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


_held: set[tuple[int, int]] = set()
"""Device and inode of every lock file that this process holds."""


class OsLock:
    """An advisory lock on an open descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd
        _held.add(_identity(fd))

    def release(self) -> None:
        """Close the descriptor, and the lock with it, where no other process has it too."""
        if self._fd >= 0:
            _held.discard(_identity(self._fd))
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
        # In this order: a disk that is full has no room for a block that was just given back.
        os.pwrite(fd, content, 0)
        os.ftruncate(fd, len(content))
    except OSError:
        os.close(fd)
        raise
    return OsLock(fd)


def wait_for_orphans(path: str) -> bool:
    """Wait up to 20 s while a lock is held for a process that is gone, by those that write for it.

    Return False if they still hold it then. A lock that another server holds is not waited for. This function blocks,
    so a server calls it before it has a loop.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return True  # whoever takes the lock is told why
    try:
        until = time.monotonic() + ORPHANS_S
        while time.monotonic() < until:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if _identity(fd) in _held or _owner_lives(os.pread(fd, 64, 0)):
                    return True
                time.sleep(_ORPHANS_POLL_S)
            else:
                return True
        return False
    finally:
        os.close(fd)


def holders(path: str) -> list[int]:
    """Return the ids of the processes that have the file open, as far as this user may see them."""
    wanted = os.path.realpath(path)
    found = []
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if entry.isdigit() and int(entry) != os.getpid():
            with suppress(OSError):
                handles = f"/proc/{entry}/fd"
                if any(os.readlink(f"{handles}/{handle}") == wanted for handle in os.listdir(handles)):
                    found.append(int(entry))
    return sorted(found)


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _owner_lives(content: bytes) -> bool:
    """Whether the process runs that a lock file names. One that cannot be examined counts as running.

    This process does not: it is starting, so the file is from an earlier one with the same id. In a container every
    server has the id 1.
    """
    name, _, number = content.strip().partition(b"=")
    if name != b"pid" or not number.isdigit() or not int(number):
        return True
    if int(number) == os.getpid():
        return False
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
