"""A disk on which one directory may hang, as the mount of a cold tier does when its server is away.

Every call on a path below that directory, and on a file opened there, waits as `seam.patience` has it; all other calls
go straight to the disk.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from driftq.seam.disk import Disk, File, Site
from driftq.seam.lock import Lock
from driftq.seam.patience import Patience

T = TypeVar("T")


class PatientDisk:
    """A disk, and the root below which nobody waits for ever."""

    def __init__(self, disk: Disk, root: str, patience: Patience) -> None:
        self._disk = disk
        self._root = root.rstrip("/")
        self._patience = patience

    def _call(self, path: str, work: Callable[[], T], *, changes: bool = False) -> T:
        if path == self._root or path.startswith(f"{self._root}/"):
            return self._patience.call(work, path, changes=changes)
        return work()

    def open(self, path: str) -> File:
        """Open an existing file."""
        return self._file(path, self._call(path, lambda: self._disk.open(path)))

    def create(self, path: str) -> File:
        """Create or cut a file."""
        return self._file(path, self._call(path, lambda: self._disk.create(path), changes=True))

    def _file(self, path: str, file: File) -> File:
        return PatientFile(file, path, self._patience) if path.startswith(f"{self._root}/") else file

    def names(self, directory: str) -> list[str]:
        """Names in a directory."""
        return self._call(directory, lambda: self._disk.names(directory))

    def exists(self, path: str) -> bool:
        """Is there a file or directory of this name? Raises OSError when it hangs."""
        return self._call(path, lambda: self._disk.exists(path))

    def mkdir(self, path: str) -> bool:
        """Make one directory."""
        return self._call(path, lambda: self._disk.mkdir(path), changes=True)

    def rename(self, old: str, new: str) -> None:
        """Move a file."""
        self._call(old, lambda: self._disk.rename(old, new), changes=True)

    def link(self, old: str, new: str) -> None:
        """Give a file a second name."""
        self._call(old, lambda: self._disk.link(old, new), changes=True)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        self._call(path, lambda: self._disk.unlink(path), changes=True)

    def remove_tree(self, directory: str) -> None:
        """Remove a directory and all below it."""
        self._call(directory, lambda: self._disk.remove_tree(directory), changes=True)

    def sync_dir(self, directory: str, site: Site) -> None:
        """Make the entries of a directory durable."""
        self._call(directory, lambda: self._disk.sync_dir(directory, site), changes=True)

    def free_bytes(self, directory: str) -> int:
        """Return how many bytes new files below a directory may take."""
        return self._call(directory, lambda: self._disk.free_bytes(directory))

    def lock(self, path: str, content: bytes) -> Lock:
        """Take an exclusive lock."""
        return self._disk.lock(path, content)


class PatientFile:
    """A file below that root."""

    def __init__(self, file: File, path: str, patience: Patience) -> None:
        self._file = file
        self._path = path
        self._patience = patience

    def pread(self, size: int, offset: int) -> bytes:
        """Read."""
        return self._patience.call(lambda: self._file.pread(size, offset), self._path)

    def pread_into(self, view: memoryview, offset: int) -> int:
        """Read. A read that was given up may still fill a buffer of its own, not the caller's."""
        content = self.pread(len(view), offset)
        view[: len(content)] = content
        return len(content)

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        """Return None: nobody can tell whether a read here would wait."""
        return None

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> int:
        """Write."""
        return self._patience.call(lambda: self._file.pwritev(buffers, offset), self._path, changes=True)

    def sync(self, site: Site) -> None:
        """Make what was written durable."""
        self._patience.call(lambda: self._file.sync(site), self._path, changes=True)

    def write_out(self) -> None:
        """Have what is pending written."""
        self._patience.call(self._file.write_out, self._path, changes=True)

    def truncate(self, size: int) -> None:
        """Cut or extend."""
        self._patience.call(lambda: self._file.truncate(size), self._path, changes=True)

    def size(self) -> int:
        """Length in bytes."""
        return self._patience.call(self._file.size, self._path)

    def close(self) -> None:
        """Give the handle back, on another thread: that may hang too."""
        self._patience.leave(self._file.close)
