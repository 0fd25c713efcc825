"""A disk that checks the order of syncs in every test that uses it.

A crash sweep finds a missing sync if some crash shows it. These rules find it in any run:

- a file is renamed only after its last write is synced;
- a segment's `.idx` is created only when the `.data` file next to it has no unsynced writes;
- a WAL file is synced only when its entry and those of the directories above it are durable: what such a sync
  acknowledges would vanish with the entry;
- a snapshot or WAL file is removed only when every newer snapshot is durable, entry and content;
- a hot segment file is removed only when the cold copy of its name, if there is one, is durable, entry and content.

Files that existed before this disk object count as durable.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from driftq.system.disk import Disk, File, Site
from driftq.system.lock import Lock

_WAL = re.compile(r"wal-\d+\.log")
_SNAPSHOT = re.compile(r"snapshot-(\d+)\.bin")
_HOT = re.compile(r"(seg-\d+)\.(data|idx)")


@dataclass(eq=False)
class _Known:
    """State of one file or directory. Its open handles share it, so that a rename does not lose it."""

    path: str
    entry_synced: bool = True
    writes: int = 0
    writes_synced: int = 0

    def dirty(self) -> bool:
        return self.writes > self.writes_synced


def _split(path: str) -> tuple[str, str]:
    parent, _, name = path.rstrip("/").rpartition("/")
    return parent, name


class OrderCheckingDisk:
    """Wraps a disk and checks the rules above: a violation raises AssertionError and is added to `violations`.

    The list is needed because a test may run the code in a thread, or under a handler, that swallows the error.
    """

    def __init__(self, inner: Disk) -> None:
        self.violations: list[str] = []
        self._inner = inner
        self._known: dict[str, _Known] = {}

    def open(self, path: str) -> File:
        """Open a file; writes and syncs of the handle are checked."""
        return _OrderFile(self, self._inner.open(path), self._known.setdefault(path, _Known(path)))

    def create(self, path: str) -> File:
        """Create a file. Emptying an existing file is a write, and does not change whether its entry is durable."""
        self._check_index(path)
        existed = self._inner.exists(path)
        file = self._inner.create(path)
        if existed:
            known = self._known.setdefault(path, _Known(path))
            known.writes += 1
        else:
            known = self._known[path] = _Known(path, entry_synced=False)
        return _OrderFile(self, file, known)

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory."""
        return self._inner.names(directory)

    def exists(self, path: str) -> bool:
        """Whether a file or directory of this name exists."""
        return self._inner.exists(path)

    def mkdir(self, path: str) -> bool:
        """Make a directory; nothing below it is durable before its own entry is."""
        made = self._inner.mkdir(path)
        if made:
            self._known[path.rstrip("/")] = _Known(path, entry_synced=False)
        return made

    def rename(self, old: str, new: str) -> None:
        """Rename a file, whose content must be durable."""
        known = self._known.get(old) or _Known(old)
        self._require(not known.dirty(), f"{old} is renamed to {new} before its last write is synced")
        self._check_index(new)
        self._inner.rename(old, new)
        self._known.pop(old, None)
        self._known[new] = known
        known.path = new
        known.entry_synced = False

    def link(self, old: str, new: str) -> None:
        """Give a file a second name, which is not durable yet."""
        self._inner.link(old, new)
        self._known[new] = _Known(new, entry_synced=False)

    def unlink(self, path: str) -> None:
        """Remove a file; files that take its place must be durable."""
        for heir in self._heirs(path):
            self._require(
                self._durable(heir) and not heir.dirty(),
                f"{path} is removed before {heir.path}, which takes its place, is durable",
            )
        self._inner.unlink(path)
        self._known.pop(path, None)

    def remove_tree(self, directory: str) -> None:
        """Remove a directory; nothing takes the place of a deleted topic."""
        self._inner.remove_tree(directory)
        top = directory.rstrip("/")
        for path in [path for path in list(self._known) if path == top or path.startswith(f"{top}/")]:
            del self._known[path]

    def free_bytes(self, directory: str) -> int:
        """Return the free space of the inner disk."""
        return self._inner.free_bytes(directory)

    def sync_dir(self, directory: str, site: Site) -> None:
        """Sync a directory; all its entries are durable now."""
        self._inner.sync_dir(directory, site)
        for path, known in list(self._known.items()):  # a copy, because other threads create files meanwhile
            if _split(path)[0] == directory.rstrip("/"):
                known.entry_synced = True

    def lock(self, path: str, content: bytes) -> Lock:
        """Take a lock on the inner disk."""
        return self._inner.lock(path, content)

    def check_sync(self, known: _Known) -> None:
        """Check the rules before a file is synced."""
        if _WAL.fullmatch(_split(known.path)[1]):
            self._require(self._durable(known), f"{known.path} is synced before its directory entry is durable")

    def _check_index(self, path: str) -> None:
        directory, name = _split(path)
        hot = _HOT.fullmatch(name)
        if hot and hot[2] == "idx":
            data = self._known.get(f"{directory}/{hot[1]}.data")
            self._require(data is None or not data.dirty(), f"{path} is made before the .data beside it is synced")

    def _heirs(self, path: str) -> Iterator[_Known]:
        directory, name = _split(path)
        snapshot, hot = _SNAPSHOT.fullmatch(name), _HOT.fullmatch(name)
        for other, known in list(self._known.items()):
            other_directory, other_name = _split(other)
            newer = _SNAPSHOT.fullmatch(other_name)
            if newer and (_WAL.fullmatch(name) or (snapshot and int(newer[1]) > int(snapshot[1]))):
                yield known
            # The roots of the tiers differ; the directory of a topic has the same name in both.
            topic = _split(directory)[1]
            if hot and _split(other_directory)[1] == topic and other_name in (f"{hot[1]}.parquet", f"{hot[1]}.del"):
                yield known

    def _durable(self, known: _Known) -> bool:
        parent = _split(known.path)[0]
        while known.entry_synced and parent:
            known = self._known.get(parent, known)
            parent = _split(parent)[0]
        return known.entry_synced

    def _require(self, kept: bool, violation: str) -> None:
        if not kept:
            self.violations.append(violation)
            raise AssertionError(violation)


class _OrderFile:
    def __init__(self, disk: OrderCheckingDisk, inner: File, known: _Known) -> None:
        self._disk = disk
        self._inner = inner
        self._known = known
        self.pread = inner.pread
        self.pread_into = inner.pread_into
        self.pread_nowait = inner.pread_nowait
        self.size = inner.size
        self.close = inner.close
        self.write_out = inner.write_out

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> int:
        self._known.writes += 1
        return self._inner.pwritev(buffers, offset)

    def truncate(self, size: int) -> None:
        self._known.writes += 1
        self._inner.truncate(size)

    def sync(self, site: Site) -> None:
        self._disk.check_sync(self._known)
        # A write of another thread during the sync is not covered by it.
        writes = self._known.writes
        self._inner.sync(site)
        self._known.writes_synced = writes
