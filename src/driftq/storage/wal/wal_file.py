"""The WAL files of one shard directory: made before they are needed, filled with zeros, never used twice.

States of a file: absent → made (zeros, entry durable) → current → full (synced, never written again) → trimmed.
Invariant: before the first frame goes into a file, its directory entry is durable. `file_bytes` is the room for frames,
without the head (`storage/wal/wal_head`), rounded up to whole pages. A thread makes the next file while the current one
fills. If the writer needs the file first, the writer makes it; a lock lets only one of them work at a time. A file that
the writer has taken is never made again: a thread that comes late would overwrite frames.

The last part of every file is reserved for frames that must work on a full disk (`reserve_of`).
`storage/wal/wal_writer` defines when other frames may use it. If there is no room for a whole file, `take_small` makes
a small one, which is all reserve.

Each directory also has one small file of zeros for a disk without a free byte, the reserve file:

    absent → kept (zeros and entry durable) → taken: renamed to the next WAL file → kept again when there is room

- Only the log uses it. It becomes a WAL file by a rename and is not freed in between, so neither this server nor
  another program can take its space.
- It survives a stop, a kill and a power loss. A start that finds no such file, or one that is too short, makes it
  before the new run uses any other space. One that is too short, after a start with larger files, is kept if there is
  no room for more.
- It is never written to under its own name, so a file that is taken contains only zeros.
"""

import os
import threading
from contextlib import suppress
from errno import ENOSPC

from driftq.model.limits import MIB, WAL_FILE_BYTES_MAX
from driftq.storage.layout import Layout
from driftq.storage.wal.wal_head import HEAD_BYTES
from driftq.system.disk import Disk, File, Site, write_zeros

_RESERVE_SHARE = 8
_RESERVE_BYTES_MAX = 4 * MIB
_MARGIN_SHARE = 4
_MARGIN_BYTES_MAX = 16 * MIB
_SMALL_BYTES = 256 * 1024
_SMALLER_SHARE = 16
_PAGE = 4096


def _round(size: int) -> int:
    """Return a size rounded up to whole pages.

    `offline/wal_check` relies on it: a file of another size that has bytes after its frames has lost its end.
    """
    return -(-size // _PAGE) * _PAGE


def margin_of(size: int) -> int:
    """Return the bytes that must stay free when a file of this size is made: segments and checkpoints need them."""
    return min(size // _MARGIN_SHARE, _MARGIN_BYTES_MAX)


def reserve_of(size: int) -> int:
    """Return the bytes at the end of a file of this size that are reserved for frames that must work on a full disk."""
    return min(size // _RESERVE_SHARE, _RESERVE_BYTES_MAX)


class WalFile:
    """One WAL file, and the end of its frames."""

    __slots__ = ("end", "file", "number", "open_to", "size")

    def __init__(self, file: File, number: int, size: int, reserve: int) -> None:
        self.file = file
        self.number = number
        self.size = size
        self.end = 0
        self.open_to = size - reserve
        """All frames may be written up to this offset. The rest is the reserve."""

    @property
    def is_small(self) -> bool:
        """Whether the whole file is reserve."""
        return self.open_to <= HEAD_BYTES


class WalFiles:
    """Makes the numbered WAL files of one directory."""

    def __init__(self, layout: Layout, name: str, file_bytes: int, *, keeps_reserve: bool = False) -> None:
        assert file_bytes <= WAL_FILE_BYTES_MAX, "an offset in a file has 32 bits"
        self._disk: Disk = layout.disk
        self._layout = layout
        self.data_dir = layout.data
        self.name = name
        self.file_bytes = _round(file_bytes)
        self.keeps_reserve = keeps_reserve
        self._reserve_is_durable = False
        self._lock = threading.Lock()
        self._ready: dict[int, WalFile] = {}
        self._taken = 0

    def make_directory(self) -> None:
        """Make the shard's directory and its entry durable. Recovery has done so for a directory that exists."""
        if self.name and self._disk.mkdir(self._layout.wal_dir(self.name)):
            self._disk.sync_dir(self._layout.wal_dir(""), Site.WAL_DIR)

    def keep_reserve(self) -> None:
        """Make the reserve file if it is missing or too short, and there is room for it."""
        if self.keeps_reserve:
            with self._lock, suppress(OSError):
                self._keep_reserve()

    def is_ready(self, number: int) -> bool:
        """Whether a file is made and not taken yet. Never waits, even while the other thread makes a file."""
        return number in self._ready

    def prepare(self, number: int) -> OSError | None:
        """Make a file before it is needed. Returns the error if that fails."""
        self.keep_reserve()
        with self._lock:
            if number in self._ready or number <= self._taken:
                return None
            try:
                size = self.file_bytes
                self._ready[number] = self._make(number, size, reserve_of(size), margin_of(size))
            except OSError as error:
                return error
            return None

    def take(self, number: int, size: int) -> WalFile:
        """Return the file of this number for the writer, with room for `size` bytes of frames before its reserve.

        Raises OSError if it cannot be made. If the file exists, is too small and cannot be extended, it is kept as it
        is.
        """
        reserve = reserve_of(self.file_bytes)
        with self._lock:
            ready = self._ready.get(number)
            if ready is None:
                whole = self.file_bytes if size + reserve <= self.file_bytes else _round(size + reserve)
                ready = self._make(number, whole, reserve, margin_of(self.file_bytes))
            elif ready.open_to < HEAD_BYTES + size:
                self._extend(ready, HEAD_BYTES + _round(size + reserve))
            self._ready.pop(number, None)
            self._taken = number
            return ready

    def take_small(self, number: int, size: int, *, at_any_price: bool = False) -> WalFile:
        """Return a small file of this number that is all reserve, with room for `size` bytes of frames. Raises OSError.

        This is the last resort if there is no room for a whole file. If a whole one was made meanwhile, it is returned
        instead. `at_any_price`: if no file can be made, the reserve file becomes this one.
        """
        with self._lock:
            ready = self._ready.pop(number, None)
            if ready is not None and ready.size < HEAD_BYTES + size:
                ready.file.close()
                ready = None
            if ready is None:
                ready = self._small(number, size, at_any_price=at_any_price)
            self._taken = number
            return ready

    def shrink(self, current: WalFile | None, number: int) -> None:
        """Remove the file of this number if it is not taken, and cut off the current file after its reserve."""
        with self._lock:
            ready = self._ready.pop(number, None)
            if ready is not None:
                ready.file.close()
                with suppress(OSError):
                    self._disk.unlink(self._layout.wal_path(self.name, number))
        if current is None:
            return
        size = _round(current.end + reserve_of(self.file_bytes))
        if size < current.size:
            with suppress(OSError):
                current.file.truncate(size)
                current.size = size
        current.open_to = min(current.open_to, current.end)

    def close(self) -> None:
        """Remove the files that were never used. One that cannot be removed contains zeros, as after a crash."""
        with self._lock:
            for number, ready in self._ready.items():
                ready.file.close()
                with suppress(OSError):
                    self._disk.unlink(self._layout.wal_path(self.name, number))
            self._ready.clear()

    @property
    def _small_bytes(self) -> int:
        return min(reserve_of(self.file_bytes), _SMALL_BYTES)

    def _small(self, number: int, size: int, *, at_any_price: bool) -> WalFile:
        small = self._small_bytes
        try:
            return self._make_small(number, max(size, small))
        except OSError:
            reserve = self._take_reserve(number, size) if at_any_price else None
            return reserve or self._make_small(number, max(size, small // _SMALLER_SHARE))

    def _take_reserve(self, number: int, size: int) -> WalFile | None:
        """Rename the reserve file to a WAL file. Returns None if there is no reserve file or it is too small."""
        path = self._layout.wal_reserve_path(self.name)
        if not self._disk.exists(path):
            return None
        file = self._disk.open(path)
        try:
            found = file.size()
            if found < HEAD_BYTES + size:
                file.close()
                return None
            self._disk.rename(path, self._layout.wal_path(self.name, number))
            self._disk.sync_dir(self._layout.wal_dir(self.name), Site.WAL_DIR)
        except OSError:
            file.close()
            raise
        return WalFile(file, number, found, found - HEAD_BYTES)

    def _keep_reserve(self) -> None:
        size = HEAD_BYTES + _round(self._small_bytes)
        path = self._layout.wal_reserve_path(self.name)
        there = self._disk.exists(path)
        file = self._disk.open(path) if there else self._disk.create(path)
        try:
            found = file.size()
            if found < size or not self._reserve_is_durable:  # the previous process may have died before its sync
                self._lengthen(file, found, size)
                file.sync(Site.WAL_RESERVE)
                self._disk.sync_dir(self._layout.wal_dir(self.name), Site.WAL_RESERVE_DIR)
                self._reserve_is_durable = True
        except OSError:
            if not there:
                self._disk.unlink(path)  # an empty file is not a reserve
            raise
        finally:
            file.close()

    def _lengthen(self, file: File, found: int, size: int) -> None:
        """Fill a file with zeros up to `size`, or leave it as it was if there is too little room for that.

        Raises OSError if it was empty.
        """
        try:
            write_zeros(file, found, size)
        except OSError:
            file.truncate(found)
            if not found:
                raise

    def _make_small(self, number: int, size: int) -> WalFile:
        return self._make(number, _round(size), _round(size))

    def _make(self, number: int, size: int, reserve: int, margin: int = 0) -> WalFile:
        """Make a file with room for `size` bytes of frames. The last `reserve` bytes are not for all frames."""
        size += HEAD_BYTES
        directory, path = self._layout.wal_dir(self.name), self._layout.wal_path(self.name, number)
        # Filling the disk to find out would take the last free bytes from the segment writers. A file that needs no
        # margin is small and is simply tried: a privileged user may have more space than the file system reports.
        if margin and self._disk.free_bytes(directory) < size + margin:
            raise OSError(ENOSPC, os.strerror(ENOSPC), path)
        file = self._disk.create(path)
        try:
            write_zeros(file, 0, size)
            file.write_out()
            self._disk.sync_dir(directory, Site.WAL_DIR)
        except OSError:
            file.close()
            self._disk.unlink(path)
            raise
        return WalFile(file, number, size, reserve)

    def _extend(self, ready: WalFile, size: int) -> None:
        try:
            write_zeros(ready.file, ready.size, size)
            ready.file.write_out()
        except OSError:
            with suppress(OSError):
                ready.file.truncate(ready.size)
            raise
        ready.open_to += size - ready.size
        ready.size = size
