"""The disk: files, directories, and the calls that make them durable.

A `Disk` promises what a POSIX file system promises, and no more:
- a write is *pending* until a `sync` of its file returns; a crash may keep, drop or tear pending writes in any order;
- a directory entry (create, rename, unlink, mkdir) is *pending* until a `sync_dir` of its directory returns;
- within one process a read sees every write that has returned.

Every sync names its `Site`. The simulated disk can ignore one site per run; so the tests show that every sync is
needed. `docs/guarantees.md` lists what each site protects.

Paths are strings with `/`; `storage.layout` makes them from numbers, never from names that users choose.
"""

import ctypes
import errno
import os
import shutil
from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from driftq.system.lock import Lock, OsLock, take_lock

_IOV_MAX = 1024
_WRITE_AND_WAIT = 7
_sync_file_range = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
"""Exists on Linux only. Without it, the first sync of a new WAL file takes longer; nothing else changes."""
_NOT_WRITTEN = frozenset((errno.EIO, errno.ENOSPC, errno.EDQUOT))
_ZEROS = bytes(1 << 20)


class Site(StrEnum):
    """The names of all places that sync."""

    LAYOUT_DIR = "layout.dir"
    WAL_DIR = "wal.dir"
    WAL_COMMIT = "wal.commit"
    WAL_DRAIN = "wal.drain"
    WAL_TIMER = "wal.timer"
    WAL_ROTATE = "wal.rotate"
    WAL_HEAD = "wal.head"
    WAL_RESERVE = "wal.reserve"
    WAL_RESERVE_DIR = "wal.reserve-dir"
    WAL_REPLAYED = "wal.replayed"
    SEGMENT_TOPIC_DIR = "segment.topic-dir"
    SEGMENT_DIR = "segment.dir"
    SEGMENT_DATA = "segment.data"
    SEGMENT_IDX = "segment.idx"
    SEGMENT_FLAG = "segment.flag"
    COLD_TOPIC_DIR = "cold.topic-dir"
    COLD_DIR = "cold.dir"
    COLD_PARQUET = "cold.parquet"
    COLD_DEL = "cold.del"
    COLD_FLAG = "cold.flag"
    LOST_TOPIC_DIR = "lost.topic-dir"
    LOST_DIR = "lost.dir"
    LOST_RECORD = "lost.record"
    SNAPSHOT_FILE = "snapshot.file"
    SNAPSHOT_DIR = "snapshot.dir"
    SPACE_RESERVE = "space_reserve"
    SPACE_RESERVE_LENT = "space_reserve.lent"
    STAGE_FILE = "stage.file"
    STAGE_DIR = "stage.dir"
    SERVER_ID = "server.id"
    BACKUP_FILE = "backup.file"


class File(Protocol):
    """One open file. Reads and writes take an offset, so there is no shared position."""

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer only at the end of the file. May block."""
        ...

    def pread_into(self, view: memoryview, offset: int) -> int:
        """Fill a view from its start, and return the number of bytes; fewer than its size only at the end of file."""
        ...

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        """Return the bytes without waiting for the device, or None if they are not all in memory."""
        ...

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> int:
        """Write the buffers back to back, and return the number of bytes written, which may be fewer."""
        ...

    def sync(self, site: Site) -> None:
        """Make everything written to this file so far, and its size, durable."""
        ...

    def write_out(self) -> None:
        """Make the kernel write pending bytes now, so that a later sync has less to do. Promises no durability.

        Raises OSError if the device did not take them: the kernel reports that once, and no later sync would.
        """
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes, or extend it with zeros."""
        ...

    def size(self) -> int:
        """Return the length in bytes."""
        ...

    def close(self) -> None:
        """Close the file. Promises nothing about durability."""
        ...


class Disk(Protocol):
    """A file system, as the server uses it."""

    def open(self, path: str) -> File:
        """Open for reading and writing. Raises FileNotFoundError."""
        ...

    def create(self, path: str) -> File:
        """Create a file, or cut an existing one to 0 bytes, and open it."""
        ...

    def names(self, directory: str) -> list[str]:
        """Return the sorted names in a directory; empty if it does not exist."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory of this name."""
        ...

    def mkdir(self, path: str) -> bool:
        """Make one directory whose parent exists. Returns False if it exists already."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file in one step, and replace the file that had the name `new`."""
        ...

    def link(self, old: str, new: str) -> None:
        """Give a file a second name, which must be unused. Not every file system supports this."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a file; a missing file is not an error."""
        ...

    def remove_tree(self, directory: str) -> None:
        """Remove a directory with everything in it; a missing one is not an error."""
        ...

    def sync_dir(self, directory: str, site: Site) -> None:
        """Make the entries of this one directory durable."""
        ...

    def free_bytes(self, directory: str) -> int:
        """Return the bytes that new files in a directory may use, as far as the file system reports it.

        Quotas are not included, and other programs may use the space first: a write can still fail for lack of space.
        """
        ...

    def lock(self, path: str, content: bytes) -> Lock:
        """Take an exclusive lock without waiting, or raise LockHeldError. The file then contains `content`."""
        ...


def write_fully(file: File, buffers: Sequence[bytes], offset: int) -> int:
    """Write all buffers, repeating short writes. Returns the offset after the last byte."""
    left = [buffer for buffer in buffers if buffer]
    while left:
        taken = file.pwritev(left[:_IOV_MAX], offset)
        if taken <= 0:
            raise OSError(errno.EIO, "write took no bytes")
        offset += taken
        done = 0
        while done < len(left) and taken >= len(left[done]):
            taken -= len(left[done])
            done += 1
        del left[:done]
        if taken:
            left[0] = left[0][taken:]
    return offset


def write_zeros(file: File, start: int, end: int) -> None:
    """Fill the range [start, end) with zeros."""
    while start < end:
        start = write_fully(file, [_ZEROS[: end - start]], start)


def read_file(disk: Disk, path: str) -> bytes:
    """Return the content of a file. Raises FileNotFoundError."""
    file = disk.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


_FILE_MODE, _DIRECTORY_MODE = 0o640, 0o750


def keep_private(*, group_read: bool) -> None:
    """Make new files of this process and its children private to their owner, or readable for their group too."""
    os.umask(0o027 if group_read else 0o077)


class OsFile:
    """A file of the operating system."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def pread(self, size: int, offset: int) -> bytes:
        """Read until `size` bytes or the end of the file, in as many calls as needed."""
        first = os.pread(self._fd, size, offset)
        if len(first) == size or not first:
            return first
        parts = [first]
        got = len(first)
        while got < size:
            part = os.pread(self._fd, size - got, offset + got)
            if not part:
                break
            parts.append(part)
            got += len(part)
        return b"".join(parts)

    def pread_into(self, view: memoryview, offset: int) -> int:
        """Read until the view is full or the file ends, in as many calls as needed."""
        got = 0
        while got < len(view):
            more = os.preadv(self._fd, [view[got:]], offset + got)
            if not more:
                break
            got += more
        return got

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        """Return the bytes if all are in the page cache, else None."""
        buffer = bytearray(size)
        try:
            got = os.preadv(self._fd, [buffer], offset, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL):
                return None
            raise
        return bytes(buffer) if got == size else None

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> int:
        """Make one pwritev system call."""
        return os.pwritev(self._fd, buffers, offset)

    def sync(self, site: Site) -> None:
        """Make one fdatasync system call; the site is for the simulated disk."""
        os.fdatasync(self._fd)

    def write_out(self) -> None:
        """Wait until the pages of this file are written, without a flush of the device or the journal."""
        if _sync_file_range is None:
            return
        if _sync_file_range(self._fd, ctypes.c_int64(0), ctypes.c_int64(0), _WRITE_AND_WAIT) < 0:
            code = ctypes.get_errno()
            if code in _NOT_WRITTEN:  # other errors mean that the call is not available here
                raise OSError(code, os.strerror(code))

    def truncate(self, size: int) -> None:
        """Make one ftruncate system call."""
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        """Return the length that fstat reports."""
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OsDisk:
    """The file system of the operating system."""

    __slots__ = ()

    def open(self, path: str) -> OsFile:
        """Open an existing file for reading and writing; for reading only if this user may not write it."""
        try:
            return OsFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS):
                raise
            return OsFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def create(self, path: str) -> OsFile:
        """Create a file that other users cannot read (`keep_private`), or cut an existing one to 0 bytes."""
        return OsFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE))

    def names(self, directory: str) -> list[str]:
        """Return the sorted names in a directory."""
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        """Whether lstat finds a file or directory."""
        return os.path.lexists(path)

    def mkdir(self, path: str) -> bool:
        """Make one directory whose parent exists."""
        try:
            os.mkdir(path, _DIRECTORY_MODE)
        except FileExistsError:
            return False
        return True

    def rename(self, old: str, new: str) -> None:
        """Rename a file, and replace an existing one atomically."""
        os.replace(old, new)

    def link(self, old: str, new: str) -> None:
        """Make a hard link to a file."""
        os.link(old, new)

    def unlink(self, path: str) -> None:
        """Remove a file; a missing file is not an error."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def remove_tree(self, directory: str) -> None:
        """Remove a directory with everything in it."""
        shutil.rmtree(directory, ignore_errors=True)

    def sync_dir(self, directory: str, site: Site) -> None:
        """Sync the directory with fsync; the site is for the simulated disk."""
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, directory: str) -> int:
        """Return the bytes that a user without privileges may use, from statvfs."""
        found = os.statvfs(directory)
        return found.f_bavail * found.f_frsize

    def lock(self, path: str, content: bytes) -> OsLock:
        """Take an exclusive lock with flock."""
        return take_lock(path, content)
