"""The disk, as one seam: files, directories, and the calls that make them durable.

What a `Disk` promises is what a POSIX file system promises and no more:
- a write is *pending* until a `sync` of its file returns; a crash may keep, drop or tear pending writes in any order;
- a directory entry (create, rename, unlink, mkdir) is *pending* until a `sync_dir` of its directory returns;
- within one process a read sees every write that has returned.

Every sync names its `Site`. The simulated disk can ignore one site per run, which is how the tests show that no sync
is there for decoration. `docs/guarantees.md` lists what each site protects.

Paths are strings with `/`; they are made by `storage.layout` from numbers, never from a user's name.
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
"""Linux only; elsewhere the first sync of a new WAL file takes longer, and that is all."""
_NOT_WRITTEN = frozenset((errno.EIO, errno.ENOSPC, errno.EDQUOT))
_ZEROS = bytes(1 << 20)


class Site(StrEnum):
    """Every place that syncs, by name."""

    LAYOUT_DIR = "layout.dir"
    WAL_DIR = "wal.dir"
    WAL_COMMIT = "wal.commit"
    WAL_DRAIN = "wal.drain"
    WAL_TIMER = "wal.timer"
    WAL_ROTATE = "wal.rotate"
    WAL_HEAD = "wal.head"
    WAL_RESERVE = "wal.reserve"
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
    BALLAST = "ballast"
    STAGE_FILE = "stage.file"
    STAGE_DIR = "stage.dir"
    SERVER_ID = "server.id"
    BACKUP_FILE = "backup.file"


class File(Protocol):
    """One open file. Reads and writes carry their offset; there is no position to share or lose."""

    def pread(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes from `offset`; fewer only at the end of the file. May block."""
        ...

    def pread_into(self, view: memoryview, offset: int) -> int:
        """Read into a view, from its start; returns how many bytes, fewer than it has only at the end of the file."""
        ...

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        """The same without waiting for the device: None when the bytes are not all in memory."""
        ...

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> int:
        """Write the buffers one behind the other; returns how many bytes were taken, which may be fewer."""
        ...

    def sync(self, site: Site) -> None:
        """Make everything written to this file so far, and its size, durable."""
        ...

    def write_out(self) -> None:
        """Have the kernel write what is pending now, so that a later sync has less to do. Promises nothing.

        Raises OSError when the device did not take it: the kernel says so once, and no later sync would.
        """
        ...

    def truncate(self, size: int) -> None:
        """Cut or extend (with zeros) to `size`."""
        ...

    def size(self) -> int:
        """Length in bytes."""
        ...

    def close(self) -> None:
        """Give the handle back. Says nothing about durability."""
        ...


class Disk(Protocol):
    """A file system."""

    def open(self, path: str) -> File:
        """Open for reading and writing. Raises FileNotFoundError."""
        ...

    def create(self, path: str) -> File:
        """Create, or cut an existing file to nothing, and open it."""
        ...

    def names(self, directory: str) -> list[str]:
        """Names in a directory, sorted; empty when there is no such directory."""
        ...

    def exists(self, path: str) -> bool:
        """Is there a file or directory of this name?"""
        ...

    def mkdir(self, path: str) -> bool:
        """Make one directory whose parent exists; False when it was there already."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Move a file, replacing what `new` named, in one step."""
        ...

    def link(self, old: str, new: str) -> None:
        """Give a file a second name, which nothing has yet. Not every file system can."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a file; a missing one is no error."""
        ...

    def remove_tree(self, directory: str) -> None:
        """Remove a directory and all below it; a missing one is no error."""
        ...

    def sync_dir(self, directory: str, site: Site) -> None:
        """Make the entries of this one directory durable."""
        ...

    def free_bytes(self, directory: str) -> int:
        """Return how many bytes new files below a directory may take, as far as the file system tells.

        A quota is not in it, and others may be quicker: a write can fail for lack of space all the same.
        """
        ...

    def lock(self, path: str, content: bytes) -> Lock:
        """Take an exclusive lock without waiting, or raise LockHeldError. The file then holds `content`."""
        ...


def write_fully(file: File, buffers: Sequence[bytes], offset: int) -> int:
    """Write all buffers, however short the single writes are; returns the offset behind the last byte."""
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
    """Fill a range with zeros."""
    while start < end:
        start = write_fully(file, [_ZEROS[: end - start]], start)


def read_file(disk: Disk, path: str) -> bytes:
    """A whole file. Raises FileNotFoundError."""
    file = disk.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


class OsFile:
    """A file descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def pread(self, size: int, offset: int) -> bytes:
        """Read, however many calls it takes."""
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
        """Read, however many calls it takes."""
        got = 0
        while got < len(view):
            more = os.preadv(self._fd, [view[got:]], offset + got)
            if not more:
                break
            got += more
        return got

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        """Read what is in the page cache, or nothing."""
        buffer = bytearray(size)
        try:
            got = os.preadv(self._fd, [buffer], offset, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL):
                return None
            raise
        return bytes(buffer) if got == size else None

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> int:
        """One pwritev call."""
        return os.pwritev(self._fd, buffers, offset)

    def sync(self, site: Site) -> None:
        """One fdatasync call; the site is for the simulated disk."""
        os.fdatasync(self._fd)

    def write_out(self) -> None:
        """Wait for the pages of this file to be written, without a flush of the device or of the journal."""
        if _sync_file_range is None:
            return
        if _sync_file_range(self._fd, ctypes.c_int64(0), ctypes.c_int64(0), _WRITE_AND_WAIT) < 0:
            code = ctypes.get_errno()
            if code in _NOT_WRITTEN:  # others say that there is no such call here
                raise OSError(code, os.strerror(code))

    def truncate(self, size: int) -> None:
        """One ftruncate call."""
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        """Length by fstat."""
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """Close once; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OsDisk:
    """The operating system's file system."""

    __slots__ = ()

    def open(self, path: str) -> OsFile:
        """Open an existing file."""
        return OsFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def create(self, path: str) -> OsFile:
        """Create or cut."""
        return OsFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))

    def names(self, directory: str) -> list[str]:
        """Sorted listing."""
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        """By lstat."""
        return os.path.lexists(path)

    def mkdir(self, path: str) -> bool:
        """Make one directory."""
        try:
            os.mkdir(path)
        except FileExistsError:
            return False
        return True

    def rename(self, old: str, new: str) -> None:
        """Atomic replace."""
        os.replace(old, new)

    def link(self, old: str, new: str) -> None:
        """A hard link."""
        os.link(old, new)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def remove_tree(self, directory: str) -> None:
        """Remove all below a directory, and it."""
        shutil.rmtree(directory, ignore_errors=True)

    def sync_dir(self, directory: str, site: Site) -> None:
        """Fsync of the directory; the site is for the simulated disk."""
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, directory: str) -> int:
        """By statvfs: what a user without privileges may take."""
        found = os.statvfs(directory)
        return found.f_bavail * found.f_frsize

    def lock(self, path: str, content: bytes) -> OsLock:
        """An flock."""
        return take_lock(path, content)
