"""Disk faults: a power loss, which loses some of the pending changes, and calls that fail.

The first half has the values that a power loss acts on. An inode (`FileNode`, `DirNode`) keeps what is *durable*,
what a read returns (*live*), and in order the *pending* operations between the two. All of them are immutable and
shared between images: contents are maps of 4 KiB pages without the zero pages, and pending operations are linked
lists. `driftq.testing.simulated_disk` builds a file system from them.

The second half is `FaultyDisk`, which makes the Nth call on any disk fail.
"""

import errno
import hashlib
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Generic, Self, TypeVar

from driftq.system.disk import Disk, File, Site
from driftq.system.lock import Lock

_PAGE = 4096
_SECTOR = 512
_ZERO_PAGE = bytes(_PAGE)

T = TypeVar("T")
Value = TypeVar("Value")
Entries = Mapping[str, int]
"""Maps the names in a directory to inodes."""


class Content:
    """The bytes of a file. Pages that are not listed are zero, and so is everything after `size`."""

    def __init__(self, size: int = 0, pages: Mapping[int, bytes] | None = None) -> None:
        self.size = size
        self.pages = pages or {}

    def read(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end of the file."""
        end = min(offset + size, self.size)
        if end <= offset:
            return b""
        first = offset // _PAGE
        pages = b"".join([self.pages.get(n, _ZERO_PAGE) for n in range(first, (end - 1) // _PAGE + 1)])
        return pages[offset - first * _PAGE : end - first * _PAGE]

    def written(self, pieces: Iterable[tuple[int, bytes]]) -> "Content":
        """Return the content with these bytes written at these offsets."""
        size = self.size
        pages = dict(self.pages)
        for offset, data in pieces:
            size = max(size, offset + len(data))
            done = 0
            while done < len(data):
                number, start = divmod(offset + done, _PAGE)
                page = data[done : done + _PAGE - start]
                done += len(page)
                if len(page) < _PAGE:
                    old = pages.get(number, _ZERO_PAGE)
                    page = old[:start] + page + old[start + len(page) :]
                if page == _ZERO_PAGE:
                    pages.pop(number, None)
                else:
                    pages[number] = page
        return Content(size, pages)

    def resized(self, size: int) -> "Content":
        """Return the content cut, or extended with zeros."""
        if size >= self.size:
            return Content(size, self.pages)
        whole, rest = divmod(size, _PAGE)
        pages = {number: page for number, page in self.pages.items() if number < whole}
        return Content(whole * _PAGE, pages).written([(whole * _PAGE, self.read(rest, whole * _PAGE))])

    @cached_property
    def digest(self) -> bytes:
        """Return a hash that is equal for equal bytes."""
        hashed = hashlib.blake2b(b"%d" % self.size, digest_size=16)
        for number in sorted(self.pages):
            hashed.update(b"/%d/" % number)
            hashed.update(self.pages[number])
        return hashed.digest()


@dataclass(frozen=True)
class Op(Generic[Value]):
    """One change that no sync has covered yet; `order` is its number among all changes on the disk."""

    order: int

    def applied(self, value: Value) -> Value:
        """Return the value after this change."""
        raise NotImplementedError

    def torn(self, value: Value, rng: random.Random) -> Value:
        """Return the value if the power failed during this change; by default the change is complete."""
        return self.applied(value)

    def scattered(self, value: Value, rng: random.Random) -> Value:
        """Return the value if this change reached the device or not, at random."""
        return self.applied(value) if rng.getrandbits(1) else value

    def digest(self, of: Callable[[int], bytes]) -> bytes:
        """Return a hash of the effect, independent of when it happened; `of` returns the hash of an inode."""
        raise NotImplementedError


@dataclass(frozen=True)
class Write(Op[Content]):
    """One write call on a file."""

    offset: int
    data: bytes

    def applied(self, value: Content) -> Content:
        """Return the content with all bytes written."""
        return value.written([(self.offset, self.data)])

    def torn(self, value: Content, rng: random.Random) -> Content:
        """Return the content with only the start written, up to a boundary of 512-byte sectors or 8-byte words."""
        step = rng.choice((8, _SECTOR))
        kept = rng.randint(self.offset, self.offset + len(self.data)) // step * step - self.offset
        return value.written([(self.offset, self.data[:kept])]) if kept > 0 else value

    def scattered(self, value: Content, rng: random.Random) -> Content:
        """Return the content with all, some or none of the sectors written, and perhaps with the new size anyway."""
        # Random choices per sector alone would almost never keep or lose a long write as a whole, and that is what two
        # writes that change places do.
        fate = rng.randrange(3)
        if fate == 0:
            return self.applied(value)
        end = self.offset + len(self.data)
        if end > value.size and rng.getrandbits(1):
            value = value.resized(end)
        return value.written(self._some_sectors(rng)) if fate == 1 else value

    def digest(self, of: Callable[[int], bytes]) -> bytes:
        """Return a hash of offset and bytes."""
        return b"write %d %b" % (self.offset, hashlib.blake2b(self.data, digest_size=16).digest())

    def _some_sectors(self, rng: random.Random) -> Iterator[tuple[int, bytes]]:
        start, end = self.offset, self.offset + len(self.data)
        while start < end:
            stop = min(end, (start // _SECTOR + 1) * _SECTOR)
            if rng.getrandbits(1):
                yield start, self.data[start - self.offset : stop - self.offset]
            start = stop


@dataclass(frozen=True)
class Resize(Op[Content]):
    """One truncate call on a file."""

    size: int

    def applied(self, value: Content) -> Content:
        """Return the content with the new size."""
        return value.resized(self.size)

    def digest(self, of: Callable[[int], bytes]) -> bytes:
        """Return a hash of the new size."""
        return b"resize %d" % self.size


@dataclass(frozen=True)
class Link(Op[Entries]):
    """Adds a name for an inode; with `old`, removes that name in the same step."""

    name: str
    inode: int
    old: str | None = None

    def applied(self, value: Entries) -> Entries:
        """Return the entries with the new name and without the old one."""
        return {name: inode for name, inode in value.items() if name != self.old} | {self.name: self.inode}

    def digest(self, of: Callable[[int], bytes]) -> bytes:
        """Return a hash of the names and the inode."""
        return b"link %b %b %b" % (self.name.encode(), (self.old or "").encode(), of(self.inode))


@dataclass(frozen=True)
class Unlink(Op[Entries]):
    """Removes a name from a directory."""

    name: str

    def applied(self, value: Entries) -> Entries:
        """Return the entries without the name."""
        return {name: inode for name, inode in value.items() if name != self.name}

    def digest(self, of: Callable[[int], bytes]) -> bytes:
        """Return a hash of the name."""
        return b"unlink " + self.name.encode()


class Node(Generic[Value]):
    """One inode: `live` is `durable` with every pending operation applied."""

    def __init__(self, durable: Value, live: Value, newest: tuple[Op[Value], object] | None = None) -> None:
        self.durable = durable
        self.live = live
        self._newest = newest

    def changed(self, op: Op[Value]) -> Self:
        """Return the node with one more pending operation."""
        return type(self)(self.durable, op.applied(self.live), (op, self._newest))

    def synced(self) -> Self:
        """Return the node with everything durable and nothing pending."""
        return type(self)(self.live, self.live) if self._newest else self

    def pending(self) -> list[Op[Value]]:
        """Return the pending operations, oldest first."""
        ops: list[Op[Value]] = []
        link: object = self._newest
        while isinstance(link, tuple):
            op, link = link
            ops.append(op)
        return ops[::-1]

    def dropped(self) -> Self:
        """Return the node after a crash that lost all pending operations."""
        return type(self)(self.durable, self.durable) if self.durable is not self.live else self

    def forgotten(self) -> Self:
        """Return the node after a failed sync: nothing is pending any more, although nothing reached the device."""
        return type(self)(self.durable, self.live)

    def torn(self, last: int, rng: random.Random) -> Self:
        """Return the node after a crash that kept all operations before number `last`, and that one in part."""
        value = self.durable
        for op in self.pending():
            if op.order <= last:
                value = op.applied(value) if op.order < last else op.torn(value, rng)
        return type(self)(value, value) if self._newest else self

    def scattered(self, rng: random.Random) -> Self:
        """Return the node after a crash that kept each operation or not, at random."""
        value = self.durable
        for op in self.pending():
            value = op.scattered(value, rng)
        return type(self)(value, value) if self._newest else self


class FileNode(Node[Content]):
    """The inode of a file: content and pending operations."""

    @cached_property
    def digest(self) -> bytes:
        """Return a hash that is equal for equal durable bytes and equal pending operations."""
        parts = [self.durable.digest, *(op.digest(bytes) for op in self.pending())]
        return hashlib.blake2b(b"|".join(parts), digest_size=16).digest()


class DirNode(Node[Entries]):
    """The inode of a directory: entries and pending operations."""

    def digest(self, of: Callable[[int], bytes]) -> bytes:
        """Return a hash that is equal for equal durable entries and equal pending operations, including the files."""
        parts = [b"%b %b" % (name.encode(), of(inode)) for name, inode in sorted(self.durable.items())]
        parts += [op.digest(of) for op in self.pending()]
        return hashlib.blake2b(b"|".join(parts), digest_size=16, person=b"directory").digest()


SHORT: Final = -1
"""Used instead of an error number: a write accepts only a part of its bytes."""

# long: what files remember and how disks fail; tests use both together

_READS = frozenset({"open", "names", "pread", "pread_nowait"})
_NEED_SPACE = frozenset({"create", "mkdir", "pwritev", "extend", "rename"})


class FaultyDisk:
    """Wraps a disk: call number `fail_at` fails with `error` before any effect; with `forever`, all later ones too.

    `calls` counts only calls that can fail in this way: all that change something or sync, and with `reads` also
    those that read. If `when` is given, only calls for which `when(operation, path)` is true count. ENOSPC counts
    only calls that need space (create, mkdir, pwritev, a truncate that extends, rename), and SHORT only writes of two
    bytes or more. So a loop over `fail_at` from 1 has covered every such call when a run ends with `failed == 0`.
    """

    def __init__(
        self,
        inner: Disk,
        *,
        fail_at: int = 1,
        error: int = errno.EIO,
        forever: bool = False,
        reads: bool = False,
        when: Callable[[str, str], bool] | None = None,
    ) -> None:
        self.calls = 0
        self.failed = 0
        self._inner = inner
        self._fail_at = fail_at
        self._error = error
        self._forever = forever
        self._reads = reads
        self._when = when
        self._healed = False

    def heal(self) -> None:
        """Let all later calls succeed; they are still counted."""
        self._healed = True

    def open(self, path: str) -> File:
        """Open a file, or fail; calls on the handle count too."""
        return _FaultyFile(self, self.attempt("open", path, lambda: self._inner.open(path)), path)

    def create(self, path: str) -> File:
        """Create a file, or fail; calls on the handle count too."""
        return _FaultyFile(self, self.attempt("create", path, lambda: self._inner.create(path)), path)

    def names(self, directory: str) -> list[str]:
        """List the names of a directory, or fail."""
        return self.attempt("names", directory, lambda: self._inner.names(directory))

    def exists(self, path: str) -> bool:
        """Ask the inner disk; this call never fails."""
        return self._inner.exists(path)

    def mkdir(self, path: str) -> bool:
        """Make the directory, or fail."""
        return self.attempt("mkdir", path, lambda: self._inner.mkdir(path))

    def rename(self, old: str, new: str) -> None:
        """Rename the file, or fail; `when` gets the old path."""
        self.attempt("rename", old, lambda: self._inner.rename(old, new))

    def link(self, old: str, new: str) -> None:
        """Link the file, or fail; `when` gets the old path."""
        self.attempt("link", old, lambda: self._inner.link(old, new))

    def unlink(self, path: str) -> None:
        """Remove the file, or fail."""
        self.attempt("unlink", path, lambda: self._inner.unlink(path))

    def remove_tree(self, directory: str) -> None:
        """Remove the directory, or fail."""
        self.attempt("remove_tree", directory, lambda: self._inner.remove_tree(directory))

    def free_bytes(self, directory: str) -> int:
        """Ask the inner disk; this call never fails."""
        return self._inner.free_bytes(directory)

    def sync_dir(self, directory: str, site: Site) -> None:
        """Sync the directory, or fail."""
        self.attempt("sync_dir", directory, lambda: self._inner.sync_dir(directory, site))

    def lock(self, path: str, content: bytes) -> Lock:
        """Take the lock, or fail."""
        return self.attempt("lock", path, lambda: self._inner.lock(path, content))

    def attempt(self, operation: str, path: str, call: Callable[[], T], short: Callable[[], T] | None = None) -> T:
        """Make the call, or raise the error instead; with SHORT, make the short call instead."""
        if not self._strikes(operation, path, can_be_short=short is not None):
            return call()
        if self._error == SHORT and short is not None:
            return short()
        raise OSError(self._error, os.strerror(self._error), path)

    def _strikes(self, operation: str, path: str, *, can_be_short: bool) -> bool:
        if self._error == SHORT:
            counted = can_be_short
        elif self._error == errno.ENOSPC:
            counted = operation in _NEED_SPACE
        else:
            counted = self._reads or operation not in _READS
        if not counted or (self._when is not None and not self._when(operation, path)):
            return False
        self.calls += 1
        strikes = not self._healed and (self.calls == self._fail_at or (self._forever and self.calls > self._fail_at))
        self.failed += strikes
        return strikes


class _FaultyFile:
    def __init__(self, disk: FaultyDisk, inner: File, path: str) -> None:
        self._disk = disk
        self._inner = inner
        self._path = path
        self.size = inner.size
        self.close = inner.close
        self.write_out = inner.write_out

    def pread(self, size: int, offset: int) -> bytes:
        return self._disk.attempt("pread", self._path, lambda: self._inner.pread(size, offset))

    def pread_into(self, view: memoryview, offset: int) -> int:
        return self._disk.attempt("pread_into", self._path, lambda: self._inner.pread_into(view, offset))

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        return self._disk.attempt("pread_nowait", self._path, lambda: self._inner.pread_nowait(size, offset))

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> int:
        data = b"".join(buffers)
        short = (lambda: self._inner.pwritev([data[: len(data) // 2]], offset)) if len(data) > 1 else None
        return self._disk.attempt("pwritev", self._path, lambda: self._inner.pwritev(buffers, offset), short)

    def sync(self, site: Site) -> None:
        self._disk.attempt("sync", self._path, lambda: self._inner.sync(site))

    def truncate(self, size: int) -> None:
        operation = "extend" if size > self._inner.size() else "truncate"
        self._disk.attempt(operation, self._path, lambda: self._inner.truncate(size))
