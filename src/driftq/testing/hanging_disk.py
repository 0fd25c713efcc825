"""A disk on which everything below one directory hangs as long as a test says so. For real threads only."""

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
        """How many calls have waited, or wait."""

    def hang(self) -> None:
        """Let no call return from now on."""
        self._answers.clear()

    def release(self) -> None:
        """Let all calls return."""
        self._answers.set()

    def call(self, path: str, work: Callable[[], T]) -> T:
        """Do something when it may be done."""
        if path.startswith(self._root) and not self._answers.is_set():
            self.waiting += 1
            self._answers.wait()
        return work()

    def open(self, path: str) -> File:
        """Open an existing file."""
        return _HangingFile(self, self.call(path, lambda: self._disk.open(path)), path)

    def create(self, path: str) -> File:
        """Create or cut a file."""
        return _HangingFile(self, self.call(path, lambda: self._disk.create(path)), path)

    def names(self, directory: str) -> list[str]:
        """Names in a directory."""
        return self.call(directory, lambda: self._disk.names(directory))

    def exists(self, path: str) -> bool:
        """Is there a file or directory of this name?"""
        return self.call(path, lambda: self._disk.exists(path))

    def mkdir(self, path: str) -> bool:
        """Make one directory."""
        return self.call(path, lambda: self._disk.mkdir(path))

    def rename(self, old: str, new: str) -> None:
        """Move a file."""
        self.call(old, lambda: self._disk.rename(old, new))

    def link(self, old: str, new: str) -> None:
        """Give a file a second name."""
        self.call(old, lambda: self._disk.link(old, new))

    def unlink(self, path: str) -> None:
        """Remove a file."""
        self.call(path, lambda: self._disk.unlink(path))

    def remove_tree(self, directory: str) -> None:
        """Remove a directory and all below it."""
        self.call(directory, lambda: self._disk.remove_tree(directory))

    def sync_dir(self, directory: str, site: Site) -> None:
        """Make the entries of a directory durable."""
        self.call(directory, lambda: self._disk.sync_dir(directory, site))

    def free_bytes(self, directory: str) -> int:
        """Return how many bytes new files below a directory may take."""
        return self.call(directory, lambda: self._disk.free_bytes(directory))

    def lock(self, path: str, content: bytes) -> Lock:
        """Take an exclusive lock."""
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
