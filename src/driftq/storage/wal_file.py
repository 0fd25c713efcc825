"""WAL files of one shard directory: made ahead of their use, filled with zeros, never used twice.

States of a file: absent → made (zeros, entry durable) → current → full (synced, never written again) → trimmed.
Invariant: before the first frame goes into a file, its directory entry is durable. The next file is made by a thread of
its own while the current one fills; whoever comes first makes it, the other waits. A file that the writer has taken is
never made again: the thread may come late, and find it full of frames.
"""

import threading
from contextlib import suppress

from driftq.seam.disk import Disk, File, Site, write_zeros
from driftq.storage.layout import Layout


class WalFile:
    """One made file and how far it is written."""

    __slots__ = ("end", "file", "number", "size")

    def __init__(self, file: File, number: int, size: int) -> None:
        self.file = file
        self.number = number
        self.size = size
        self.end = 0


class WalFiles:
    """Makes the numbered files of one directory."""

    def __init__(self, layout: Layout, name: str, file_bytes: int) -> None:
        self._disk: Disk = layout.disk
        self._layout = layout
        self.data_dir = layout.data
        self.name = name
        self.file_bytes = file_bytes
        self._lock = threading.Lock()
        self._ready: dict[int, WalFile] = {}
        self._taken = 0

    def make_directory(self) -> None:
        """The shard's directory, durable; one that was there has been made durable by recovery."""
        if self.name and self._disk.mkdir(self._layout.wal_dir(self.name)):
            self._disk.sync_dir(self._layout.wal_dir(""), Site.WAL_DIR)

    def prepare(self, number: int) -> None:
        """Make a file ahead of its use. A failure is met again, and reported, by `take`."""
        with self._lock:
            if number in self._ready or number <= self._taken:
                return
            try:
                self._ready[number] = self._make(number, self.file_bytes)
            except OSError:
                return

    def take(self, number: int, size: int) -> WalFile:
        """The made file of this number, for the writer, at least so large. Raises OSError when it cannot be made."""
        with self._lock:
            ready = self._ready.pop(number, None)
            if ready is None or ready.size < size:
                if ready is not None:
                    ready.file.close()
                ready = self._make(number, max(size, self.file_bytes))
            self._taken = number
            return ready

    def close(self) -> None:
        """Remove what was made and never used. What cannot be removed is zeros, as a crash would have left it."""
        with self._lock:
            for number, ready in self._ready.items():
                ready.file.close()
                with suppress(OSError):
                    self._disk.unlink(self._layout.wal_path(self.name, number))
            self._ready.clear()

    def _make(self, number: int, size: int) -> WalFile:
        path = self._layout.wal_path(self.name, number)
        file = self._disk.create(path)
        try:
            write_zeros(file, 0, size)
            file.write_out()
            self._disk.sync_dir(self._layout.wal_dir(self.name), Site.WAL_DIR)
        except OSError:
            file.close()
            self._disk.unlink(path)
            raise
        return WalFile(file, number, size)
