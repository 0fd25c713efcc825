"""The lock of a directory: it has one owner, and the processes that write for the owner hold it too.

It is an advisory lock on an open file; other processes hold it through the owner's descriptor (`fileno`). It is free
when the last of them has closed the descriptor. So a start that finds the lock held for a dead owner waits for the
processes that are still writing.
"""

import errno
import fcntl
import os
import time
from contextlib import suppress
from typing import Protocol

ORPHANS_S = 20.0
"""Time in seconds for the writer processes of a dead server to end. They need one or two syncs."""
_ORPHANS_POLL_S = 0.01


class LockHeldError(OSError):
    """Another process holds the lock."""


class Lock(Protocol):
    """A held lock. It is released at the latest when the process ends."""

    def release(self) -> None:
        """Release the lock, unless other processes still hold it."""
        ...

    def fileno(self) -> int:
        """Return the descriptor through which another process can hold the lock."""
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
        """Close the descriptor. This releases the lock, unless another process has the descriptor too."""
        if self._fd >= 0:
            _held.discard(_identity(self._fd))
            os.close(self._fd)
            self._fd = -1

    def fileno(self) -> int:
        """Return the descriptor of the lock file."""
        return self._fd


def take_lock(path: str, content: bytes) -> OsLock:
    """Take the lock, or raise LockHeldError. If the owner is dead, wait for its writer processes first."""
    wait_for_orphans(path)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if os.fstat(fd).st_uid == os.geteuid():
            os.fchmod(fd, 0o600)  # who can read the file can hold the lock
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise LockHeldError(error.errno, "the lock is held", path) from None
        raise
    try:
        # Write first: on a full disk, a block that the truncation frees may not be available for the write.
        os.pwrite(fd, content, 0)
        os.ftruncate(fd, len(content))
    except OSError:
        os.close(fd)
        raise
    return OsLock(fd)


def wait_for_orphans(path: str) -> bool:
    """Wait up to 20 s while the writer processes of a dead owner hold the lock.

    Returns False if they still hold it then. Does not wait for a lock that a running server holds. This function
    blocks, so a server calls it before it has a loop.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return True  # `take_lock` reports the error
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
    """Whether the process named in a lock file runs. A process that cannot be examined counts as running.

    This process does not count: it is starting, so the file is from an earlier process with the same id. In a container
    every server has the id 1.
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
