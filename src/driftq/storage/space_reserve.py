"""A file that only takes space, for a checkpoint that has no room: checkpoints must work on a full disk.

    absent → kept (zeros) → lent: renamed to the unfinished checkpoint and overwritten → it is the checkpoint → absent
                │             └─→ taken back: overwriting failed → kept
                └─→ released: removed → absent → kept again as soon as there is room

It is released if the file system cannot overwrite it without free space, and as the last resort if a change that must
work on a full disk has no room in the log. The file is synced, so that it exists after a power loss too. A start makes
it if it is missing, and extends it if it is too short.
"""

from contextlib import suppress

from driftq.storage.layout import Layout
from driftq.system.disk import File, Site, write_zeros

_LEFT_FREE = 64 * 1024
_CUT_ABOVE = 4
"""Less would cut and extend the file in turns, because what is in memory only changes with the load."""


class SpaceReserve:
    """The space reserve of one data directory. Its methods wait for the disk: they are for a thread."""

    def __init__(self, layout: Layout, size: int) -> None:
        self._disk = layout.disk
        self._path = layout.space_reserve_path
        self._directory = layout.data
        self._least = size
        self.size = 0
        """Size of the file in bytes; 0 while it is lent, released or not known."""
        self.is_whole = True
        """Whether the last call of `keep` found or made the file large enough for a checkpoint like the last one."""

    def keep(self, size: int) -> bool:
        """Make the file as large as `size` and the size given at the start. Returns whether it is.

        `size` is twice that of a checkpoint. If there is too little room, the file is smaller: a quarter of the wanted
        size, at least 64 KiB for a small WAL file, stays free. A file for less than one checkpoint leaves nothing free.
        A file of more than four times `size` is cut.
        """
        size = max(size, self._least)
        if not self._least or size <= self.size <= _CUT_ABOVE * size:
            self.is_whole = True
            return True
        try:
            there = self._disk.exists(self._path)
            file = self._disk.open(self._path) if there else self._disk.create(self._path)
            try:
                found = file.size()
                most = found + self._disk.free_bytes(self._directory)
                one = min(max(self._least, size // 2), most)
                self._resize(file, found, min(size, max(one, most - max(size // 4, _LEFT_FREE))))
                self.size = file.size()
            finally:
                file.close()
        except OSError:
            self.is_whole = False
            return False
        self.is_whole = self.size >= max(self._least, size // 2)
        return self.size >= size

    def _resize(self, file: File, found: int, size: int) -> None:
        try:
            if found > _CUT_ABOVE * size:
                file.truncate(size)
            else:
                write_zeros(file, found, size)
            file.sync(Site.SPACE_RESERVE)
            self._disk.sync_dir(self._directory, Site.LAYOUT_DIR)
        except OSError:
            with suppress(OSError):
                file.truncate(found)

    def lend(self, path: str, directory: str) -> bool:
        """Rename the file to `path` in `directory`, to be overwritten there. Return whether there was a file."""
        self.size = 0
        if not self._disk.exists(self._path):
            return False
        self._disk.rename(self._path, path)
        self._disk.sync_dir(directory, Site.SPACE_RESERVE_LENT)
        self._disk.sync_dir(self._directory, Site.SPACE_RESERVE_LENT)
        return True

    def take_back(self, path: str, directory: str) -> None:
        """Rename a lent file in `directory` back, whatever was written to it."""
        file = self._disk.open(path)
        try:
            file.sync(Site.SPACE_RESERVE)
            size = file.size()
        finally:
            file.close()
        self._disk.rename(path, self._path)
        self._disk.sync_dir(self._directory, Site.SPACE_RESERVE_LENT)
        self._disk.sync_dir(directory, Site.SPACE_RESERVE_LENT)
        self.size = size

    def release(self) -> bool:
        """Remove the file to free its space. Returns whether there was one."""
        self.size = 0
        if not self._disk.exists(self._path):
            return False
        self._disk.unlink(self._path)
        return True
