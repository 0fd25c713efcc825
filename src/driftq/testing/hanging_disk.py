"""A disk on which calls below one directory hang while a test wants it. For tests with real threads only."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from driftq.system.disk import Disk, File, Site
from driftq.system.lock import Lock

T = TypeVar("T")


class HangingDisk:
    """A disk whose calls below `root` do not return while it hangs."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._root = root
        self._answers = threading.Event()
        self._answers.set()
        self.waiting = 0
        """Number of calls that have waited or are waiting."""

    def hang(self) -> None:
        """Let no call return from now on."""
        self._answers.clear()

    def release(self) -> None:
        """Let all calls return, the waiting ones too."""
        self._answers.set()

    def call(self, path: str, work: Callable[[], T]) -> T:
        """Do `work`, but wait first while the disk hangs."""
        if path.startswith(self._root) and not self._answers.is_set():
            self.waiting += 1
            self._answers.wait()
        return work()

    def open(self, path: str) -> File:
        """Open an existing file; wait while the disk hangs."""
        return _HangingFile(self, self.call(path, lambda: self._disk.open(path)), path)

    def create(self, path: str) -> File:
        """Create a file or empty an existing one; wait while the disk hangs."""
        return _HangingFile(self, self.call(path, lambda: self._disk.create(path)), path)

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory."""
        return self.call(directory, lambda: self._disk.names(directory))

    def exists(self, path: str) -> bool:
        """Whether a file or directory with this name exists."""
        return self.call(path, lambda: self._disk.exists(path))

    def mkdir(self, path: str) -> bool:
        """Make one directory; wait while the disk hangs."""
        return self.call(path, lambda: self._disk.mkdir(path))

    def rename(self, old: str, new: str) -> None:
        """Move a file; wait while the disk hangs."""
        self.call(old, lambda: self._disk.rename(old, new))

    def link(self, old: str, new: str) -> None:
        """Give a file a second name."""
        self.call(old, lambda: self._disk.link(old, new))

    def unlink(self, path: str) -> None:
        """Remove a file; wait while the disk hangs."""
        self.call(path, lambda: self._disk.unlink(path))

    def remove_tree(self, directory: str) -> None:
        """Remove a directory and everything below it."""
        self.call(directory, lambda: self._disk.remove_tree(directory))

    def sync_dir(self, directory: str, site: Site) -> None:
        """Make the entries of a directory durable."""
        self.call(directory, lambda: self._disk.sync_dir(directory, site))

    def free_bytes(self, directory: str) -> int:
        """Return how many bytes new files below a directory may take."""
        return self.call(directory, lambda: self._disk.free_bytes(directory))

    def lock(self, path: str, content: bytes) -> Lock:
        """Take an exclusive lock; this call never hangs."""
        return self._disk.lock(path, content)


class _HangingFile:
    def __init__(self, disk: HangingDisk, inner: File, path: str) -> None:
        self._disk = disk
        self._inner = inner
        self._path = path
        self.close = inner.close
        self.write_out = inner.write_out

    def _call(self, work: Callable[..., Any], *given: object) -> Any:
        return self._disk.call(self._path, lambda: work(*given))

    def pread(self, size: int, offset: int) -> bytes:
        content: bytes = self._call(self._inner.pread, size, offset)
        return content

    def pread_into(self, view: memoryview, offset: int) -> int:
        got: int = self._call(self._inner.pread_into, view, offset)
        return got

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        return self._inner.pread_nowait(size, offset)

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> int:
        taken: int = self._call(self._inner.pwritev, buffers, offset)
        return taken

    def sync(self, site: Site) -> None:
        self._call(self._inner.sync, site)

    def truncate(self, size: int) -> None:
        self._call(self._inner.truncate, size)

    def size(self) -> int:
        length: int = self._call(self._inner.size)
        return length
