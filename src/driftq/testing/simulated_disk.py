"""A simulated disk that knows what a power loss would keep, and can lose the rest.

A sync makes the content of one file, or the entries of one directory, durable; nothing else does. So a synced file
whose entry is pending vanishes at a crash, and so does a synced entry below a directory whose own entry is pending.
What one file or directory remembers, and what a crash leaves of it, is in `driftq.testing.disk_faults`.

All of that is immutable, so `fork` copies only one dict of references, however large the files are. A sweep can take an
image after every call, and crash each of them later, in every mode.
"""

import errno
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import accumulate
from typing import Any

from driftq.system.disk import Site
from driftq.system.lock import LockHeldError
from driftq.testing.disk_faults import Content, DirNode, Entries, FileNode, Link, Op, Resize, Unlink, Write

# long: every call of a file system in one place, next to its effects

_TOP = 0


class Crashed(BaseException):
    """The machine lost power. Not an `Exception`, because no handler of the product runs in a dead process."""


class CrashMode(StrEnum):
    """What happens to pending operations at a power loss."""

    DROP = "drop"
    """No pending operation survives the crash."""
    KEEP = "keep"
    """All pending operations survive the crash."""
    TORN = "torn"
    """Operations survive up to a random one, in the order of the calls; of that one, if a write, only the start."""
    REORDER = "reorder"
    """Each operation survives or not, independently; of a write perhaps only some sectors, or its size alone."""


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


class SimFile:
    """A handle on an inode of one `SimDisk`; renames and unlinks do not affect it."""

    def __init__(self, disk: "SimDisk", inode: int, path: str) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path
        self._open = True

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes, including every write that has returned."""
        return self._content().read(size, offset)

    def pread_into(self, view: memoryview, offset: int) -> int:
        """Read into a view, and return the number of bytes."""
        data = self.pread(len(view), offset)
        view[: len(data)] = data
        return len(data)

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        """Return the bytes if the disk is `cached`; None otherwise, and for a read over the end, like the real disk."""
        data = self._content().read(size, offset)
        return data if self._disk.cached and len(data) == size else None

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> int:
        """Add one pending write, however many buffers there are."""
        size = self._content().size
        data = b"".join(buffers)
        with self._disk._call("pwritev", self._path):
            data = data[: self._disk._room_for(size, offset, len(data), self._path)]
            if data:
                self._disk._change(self._inode, Write(self._disk._next(), offset, data))
        return len(data)

    def sync(self, site: Site) -> None:
        """Make the content durable, unless the disk ignores the site."""
        self._content()
        with self._disk._call("sync", self._path):
            self._disk._sync(self._inode, site)

    def forget_pending(self) -> None:
        """Act as if a sync had failed: pending writes count as clean; reads see them, and no sync writes them."""
        self._disk._nodes[self._inode] = self._disk._nodes[self._inode].forgotten()

    def write_out(self) -> None:
        """Do nothing: what the kernel writes on its own is not guaranteed, so a crash decides about it."""
        self._content()

    def truncate(self, size: int) -> None:
        """Add one pending resize to the file."""
        self._content()
        with self._disk._call("truncate", self._path):
            self._disk._change(self._inode, Resize(self._disk._next(), size))

    def size(self) -> int:
        """Return the length, including every write that has returned."""
        return self._content().size

    def close(self) -> None:
        """Close the handle. Never fails, not even on a dead disk, because a crash passes through `finally` blocks."""
        self._open = False

    def _content(self) -> Content:
        if not self._open:
            raise _error(errno.EBADF, self._path)
        return self._disk._content(self._inode)


class SimLock:
    """A lock that is held in one `SimDisk`."""

    def __init__(self, held: set[int], inode: int) -> None:
        self._held = held
        self._inode = inode

    def release(self) -> None:
        """Release the lock; a second call does nothing, even if the lock has a new holder."""
        self._held.discard(self._inode)
        self._held = set()

    def fileno(self) -> int:
        """Raise OSError: a simulated lock has no file descriptor."""
        raise OSError(errno.EBADF, "a simulated lock has no descriptor")


class SimDisk:
    """A file system in memory that can lose power.

    The `roots` and the directories above them are durable from the start. The same calls and seeds give the same
    result.

    - `calls` counts all calls that can change something: create, mkdir, rename, link, unlink, remove_tree, pwritev,
      truncate, sync, sync_dir, lock; also those that happened to change nothing. `on_call(operation, path)` is called
      after each of them; for a handle, the path is the one it was opened with.
    - `crash_after`: after that many calls the process is dead; `Crashed` is raised by that call and by every later one.
      `crash` and `fork` still work.
    - `ignore`: syncs of this site succeed and do nothing, also on the disks that `crash` and `fork` return.
    - `synced` counts the requested syncs by site, including the ignored ones.
    - `cached`: with False, every `pread_nowait` misses.
    - `space`: how many bytes all files may have together; None means no limit. A write that makes a file longer is cut
      short if only a part of it fits, and fails with ENOSPC if nothing fits. A write inside a file needs no space, and
      names need none. `crash` and `fork` keep the limit, and it may be set at any time.
    """

    def __init__(
        self,
        roots: Sequence[str] = ("/data", "/cold"),
        *,
        crash_after: int | None = None,
        ignore: Site | None = None,
        on_call: Callable[[str, str], None] | None = None,
    ) -> None:
        self.calls = 0
        self.crash_after: int | None = None
        self.ignore = ignore
        self.on_call: Callable[[str, str], None] | None = None
        self.synced: Counter[Site] = Counter()
        self.cached = True
        self.space: int | None = None
        self._nodes: dict[int, FileNode | DirNode] = {_TOP: DirNode({}, {})}
        self._serial = 0
        self._held: set[int] = set()
        self._dead = False
        # The manual runtime has no threads, but tests of the HTTP layer run real workers on a simulated disk.
        self._mutex = threading.RLock()
        for root in roots:
            for above in [*accumulate(filter(None, root.split("/")), "{}/{}".format)]:
                self.mkdir(above)
        self._nodes = {inode: node.synced() for inode, node in self._nodes.items()}
        self.calls, self.crash_after, self.on_call = 0, crash_after, on_call

    def open(self, path: str) -> SimFile:
        """Return a handle on an existing file."""
        self._check_alive()
        inode = self._find(path)
        if inode is None:
            raise _error(errno.ENOENT, path)
        if isinstance(self._nodes[inode], DirNode):
            raise _error(errno.EISDIR, path)
        return SimFile(self, inode, path)

    def create(self, path: str) -> SimFile:
        """Add a pending entry, or a pending truncation of the existing file."""
        with self._call("create", path):
            inode = self._create(path)
            if self._content(inode).size:
                self._change(inode, Resize(self._next(), 0))
            return SimFile(self, inode, path)

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted."""
        self._check_alive()
        inode = self._find(directory)
        return sorted(self._entries_of(inode, directory)) if inode is not None else []

    def exists(self, path: str) -> bool:
        """Whether a file or directory of this name exists."""
        self._check_alive()
        try:
            return self._find(path) is not None
        except NotADirectoryError:
            return False

    def mkdir(self, path: str) -> bool:
        """Add a pending entry for a directory."""
        with self._call("mkdir", path):
            parent, name = self._place(path)
            if self._find(path) is not None:
                return False
            self._add(parent, name, DirNode({}, {}))
            return True

    def rename(self, old: str, new: str) -> None:
        """Add one pending step within a directory; between two directories, a pending entry and a pending removal."""
        with self._call("rename", old):
            source, old_name = self._place(old)
            inode = self._find(old)
            target, new_name = self._place(new)
            if inode is None:
                raise _error(errno.ENOENT, old)
            assert isinstance(self._nodes[inode], FileNode), "only files are renamed"
            replaced = self._find(new)
            if replaced is not None and isinstance(self._nodes[replaced], DirNode):
                raise _error(errno.EISDIR, new)
            if replaced == inode:
                return
            order = self._next()
            if source == target:
                self._change(source, Link(order, new_name, inode, old=old_name))
            else:
                self._change(target, Link(order, new_name, inode))
                self._change(source, Unlink(order, old_name))

    def link(self, old: str, new: str) -> None:
        """Add a pending entry: a second name for a file."""
        with self._call("link", old):
            inode = self._find(old)
            if inode is None:
                raise _error(errno.ENOENT, old)
            assert isinstance(self._nodes[inode], FileNode), "only files have a second name"
            parent, name = self._place(new)
            if self._find(new) is not None:
                raise _error(errno.EEXIST, new)
            self._change(parent, Link(self._next(), name, inode))

    def unlink(self, path: str) -> None:
        """Add a pending removal of the name."""
        with self._call("unlink", path):
            inode = self._find(path)
            if inode is None:
                return
            if isinstance(self._nodes[inode], DirNode):
                raise _error(errno.EISDIR, path)
            parent, name = self._place(path)
            self._change(parent, Unlink(self._next(), name))

    def remove_tree(self, directory: str) -> None:
        """Add a pending removal for each entry below, in its own directory, and for the directory last."""
        with self._call("remove_tree", directory):
            inode = self._find(directory) if self.exists(directory) else None
            if inode is not None and isinstance(self._nodes[inode], DirNode):
                self._empty(inode)
                parent, name = self._place(directory)
                self._change(parent, Unlink(self._next(), name))

    def sync_dir(self, directory: str, site: Site) -> None:
        """Make the entries of this directory durable, not its own entry and no content, unless the site is ignored."""
        with self._call("sync_dir", directory):
            self._sync(self._directory(directory), site)

    def free_bytes(self, directory: str) -> int:
        """Return how much `space` is left; the largest int if there is no limit."""
        with self._mutex:
            return sys.maxsize if self.space is None else max(0, self.space - self.used_bytes())

    def used_bytes(self) -> int:
        """Return the total size of all files that have a name."""
        sizes: dict[int, int] = {}
        left = [_TOP]
        while left:
            node = self._nodes[inode := left.pop()]
            if isinstance(node, DirNode):
                left += node.live.values()
            else:
                sizes[inode] = node.live.size
        return sum(sizes.values())

    def _room_for(self, size: int, offset: int, count: int, path: str) -> int:
        """Return how many of `count` bytes can be written at an offset of a file of this size. Raise ENOSPC if none."""
        if self.space is None or offset + count <= size:
            return count
        taken = min(count, max(0, size + self.free_bytes(path) - offset))
        if not taken:
            raise _error(errno.ENOSPC, path)
        return taken

    def lock(self, path: str, content: bytes) -> SimLock:
        """Take a lock, until it is released or the disk is discarded; `crash` and `fork` start without locks."""
        with self._call("lock", path):
            inode = self._find(path)
            if inode in self._held:
                raise LockHeldError(errno.EWOULDBLOCK, "the lock is held", path)
            inode = self._create(path)
            self._change(inode, Resize(self._next(), 0))
            self._change(inode, Write(self._next(), 0, content))
            self._held.add(inode)
            return SimLock(self._held, inode)

    def fork(self) -> "SimDisk":
        """Return a copy of the state, durable and pending; handles and locks stay with this disk.

        The copy is what the next process finds after a SIGKILL: the page cache is still there.
        """
        with self._mutex:
            other = self._with(dict(self._nodes))
            other.calls = self.calls
            other.synced = self.synced.copy()
            return other

    def crash(self, mode: CrashMode, seed: int) -> "SimDisk":
        """Return the disk that the machine finds when the power is back; this disk does not change."""
        rng = random.Random(seed)
        before = self.fork()._nodes
        last = 0
        if mode is CrashMode.TORN:
            last = rng.choice(sorted({op.order for node in before.values() for op in node.pending()}) or [0])
        after: dict[int, FileNode | DirNode] = {}
        left = [_TOP]
        while left:
            inode = left.pop()
            if inode not in after:
                node = after[inode] = _survivor(before[inode], mode, last, rng)
                if isinstance(node, DirNode):
                    left += [node.live[name] for name in sorted(node.live)]
        return self._with(after)

    def state_digest(self) -> str:
        """Return a hash that is equal for equal durable content and pending operations, on any machine."""
        known: dict[int, bytes] = {}

        def digest(inode: int) -> bytes:
            if inode not in known:
                node = self._nodes[inode]
                known[inode] = node.digest if isinstance(node, FileNode) else node.digest(digest)
            return known[inode]

        return digest(_TOP).hex()

    @contextmanager
    def _call(self, operation: str, path: str) -> Iterator[None]:
        """Wrap a call that changes something: count it and report it, unless it fails."""
        with self._mutex:
            self._check_alive()
            yield
            self.calls += 1
            if self.on_call is not None:
                self.on_call(operation, path)
            self._dead = self.crash_after is not None and self.calls >= self.crash_after
            self._check_alive()

    def _check_alive(self) -> None:
        if self._dead:
            raise Crashed(f"the process died with disk call {self.calls}")

    def _with(self, nodes: dict[int, FileNode | DirNode]) -> "SimDisk":
        other = SimDisk((), ignore=self.ignore)
        other.cached = self.cached
        other.space = self.space
        other._nodes = nodes
        other._serial = self._serial
        return other

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def _change(self, inode: int, op: Op[Any]) -> None:
        self._nodes[inode] = self._nodes[inode].changed(op)

    def _sync(self, inode: int, site: Site) -> None:
        self.synced[site] += 1
        if site != self.ignore:
            self._nodes[inode] = self._nodes[inode].synced()

    def _add(self, parent: int, name: str, node: FileNode | DirNode) -> int:
        inode = self._next()
        self._nodes[inode] = node
        self._change(parent, Link(self._next(), name, inode))
        return inode

    def _create(self, path: str) -> int:
        parent, name = self._place(path)
        inode = self._find(path)
        if inode is None:
            return self._add(parent, name, FileNode(Content(), Content()))
        if isinstance(self._nodes[inode], DirNode):
            raise _error(errno.EISDIR, path)
        return inode

    def _empty(self, directory: int) -> None:
        for name, inode in sorted(self._entries_of(directory, "").items()):
            if isinstance(self._nodes[inode], DirNode):
                self._empty(inode)
            self._change(directory, Unlink(self._next(), name))

    def _find(self, path: str) -> int | None:
        inode: int | None = _TOP
        for name in filter(None, path.split("/")):
            if inode is None:
                return None
            inode = self._entries_of(inode, path).get(name)
        return inode

    def _directory(self, path: str) -> int:
        inode = self._find(path)
        if inode is None:
            raise _error(errno.ENOENT, path)
        self._entries_of(inode, path)
        return inode

    def _place(self, path: str) -> tuple[int, str]:
        parent, _, name = path.rstrip("/").rpartition("/")
        return self._directory(parent), name

    def _entries_of(self, inode: int, path: str) -> Entries:
        node = self._nodes[inode]
        if not isinstance(node, DirNode):
            raise _error(errno.ENOTDIR, path)
        return node.live

    def _content(self, inode: int) -> Content:
        self._check_alive()
        node = self._nodes[inode]
        assert isinstance(node, FileNode)
        return node.live


def _survivor(node: FileNode | DirNode, mode: CrashMode, last: int, rng: random.Random) -> FileNode | DirNode:
    match mode:
        case CrashMode.DROP:
            return node.dropped()
        case CrashMode.KEEP:
            return node.synced()
        case CrashMode.TORN:
            return node.torn(last, rng)
        case CrashMode.REORDER:
            return node.scattered(rng)
