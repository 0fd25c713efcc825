"""Bounded waiting for calls that may never return, such as a read from a network file system whose server is away.

A call runs on a thread of its own, and its caller waits for a limited time. A call that has not returned by then is
*stuck*: its caller gets `TimeoutError` (ETIMEDOUT, an `OSError`), and its thread waits until the call returns, however
long that takes.

While a call is stuck, other calls are refused at once, so that a file system that hangs costs one wait and not one per
call. Every `patience_s` seconds one call is let through to find out whether the file system still hangs, with up to
`STUCK_MAX` stuck threads.

Invariants
- While a call that changes something is stuck, no other such call begins: its late effect happens before theirs.
- The value that a stuck call returns late is closed if it has a `close` method, and then dropped.
"""

import errno
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from driftq.system.disk import Disk, File, Site
from driftq.system.lock import Lock

T = TypeVar("T")

PATIENCE_S = 10.0
STUCK_MAX = 4
_IDLE_MAX = 8


class _Call(Generic[T]):
    """One call, with its result when it has returned."""

    def __init__(self, work: Callable[[], T], *, changes: bool) -> None:
        self.work = work
        self.changes = changes
        self.over = threading.Event()
        self.given_up = False
        self.value: T | None = None
        self.error: BaseException | None = None


class Patience:
    """Waits for calls to one file system. Safe to use from any thread."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[_Call[object]]] = []
        self._stuck = 0
        self._stuck_changes = 0
        self._tried_s = 0.0
        """When the last call got stuck or was let through, in monotonic seconds."""
        self._hurried: int | None = None
        self._hurry_s = patience_s

    def hurry(self, patience_s: float) -> None:
        """Limit the calls of this thread to `patience_s` seconds, and refuse them while another call is stuck."""
        self._hurried, self._hurry_s = threading.get_ident(), patience_s

    @property
    def stuck(self) -> int:
        """Return the number of calls that have not returned in time."""
        return self._stuck

    def call(self, work: Callable[[], T], path: str, *, changes: bool = False) -> T:
        """Return what `work` returns, or raise what it raises. Raises TimeoutError with the path if it hangs."""
        hurried = threading.get_ident() == self._hurried
        call: _Call[object] = _Call(work, changes=changes)
        with self._lock:
            if not self._may_begin(changes=changes, hurried=hurried):
                raise _hangs(path)
            worker = self._idle.pop() if self._idle else self._start()
        worker.put(call)
        if not call.over.wait(self._hurry_s if hurried else self._patience_s):
            with self._lock:
                if not call.over.is_set():
                    call.given_up = True
                    self._stuck += 1
                    self._stuck_changes += changes
                    self._tried_s = time.monotonic()
                    raise _hangs(path)
        if call.error is not None:
            raise call.error
        return call.value  # type: ignore[return-value]

    def leave(self, work: Callable[[], None]) -> None:
        """Run `work` without waiting for it, whether or not other calls are stuck."""
        with self._lock:
            worker = self._idle.pop() if self._idle else self._start()
        worker.put(_Call(work, changes=False))

    def _may_begin(self, *, changes: bool, hurried: bool) -> bool:
        if not self._stuck:
            return True
        if hurried or self._stuck >= STUCK_MAX or (changes and self._stuck_changes):
            return False
        now_s = time.monotonic()
        if now_s - self._tried_s < self._patience_s:
            return False
        self._tried_s = now_s
        return True

    def _start(self) -> "queue.SimpleQueue[_Call[object]]":
        calls: queue.SimpleQueue[_Call[object]] = queue.SimpleQueue()
        threading.Thread(target=self._run, args=(calls,), name="driftq-patience", daemon=True).start()
        return calls

    def _run(self, calls: "queue.SimpleQueue[_Call[object]]") -> None:
        while True:
            call = calls.get()
            try:
                call.value = call.work()
            except BaseException as error:  # noqa: BLE001  # the caller gets it
                call.error = error
            with self._lock:
                call.over.set()
                if call.given_up:
                    self._stuck -= 1
                    self._stuck_changes -= call.changes
                keep = len(self._idle) < _IDLE_MAX
                if keep:
                    self._idle.append(calls)
            if call.given_up:
                _close(call.value)
            del call
            if not keep:
                return


def _close(value: object) -> None:
    close = getattr(value, "close", None)
    if close is not None:
        close()


def _hangs(path: str) -> OSError:
    return OSError(errno.ETIMEDOUT, "the file system does not answer", path)


class PatientDisk:
    """A disk on which calls below one root have a time limit."""

    def __init__(self, disk: Disk, root: str, patience: Patience) -> None:
        self._disk = disk
        self._root = root.rstrip("/")
        self._patience = patience

    def _call(self, path: str, work: Callable[[], T], *, changes: bool = False) -> T:
        if path == self._root or path.startswith(f"{self._root}/"):
            return self._patience.call(work, path, changes=changes)
        return work()

    def open(self, path: str) -> File:
        """Open an existing file for reading and writing."""
        return self._file(path, self._call(path, lambda: self._disk.open(path)))

    def create(self, path: str) -> File:
        """Create a file, or cut an existing one to 0 bytes."""
        return self._file(path, self._call(path, lambda: self._disk.create(path), changes=True))

    def _file(self, path: str, file: File) -> File:
        return PatientFile(file, path, self._patience) if path.startswith(f"{self._root}/") else file

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory."""
        return self._call(directory, lambda: self._disk.names(directory))

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory of this name. Raises OSError if the call hangs."""
        return self._call(path, lambda: self._disk.exists(path))

    def mkdir(self, path: str) -> bool:
        """Make one directory whose parent exists."""
        return self._call(path, lambda: self._disk.mkdir(path), changes=True)

    def rename(self, old: str, new: str) -> None:
        """Rename a file, and replace an existing one."""
        self._call(old, lambda: self._disk.rename(old, new), changes=True)

    def link(self, old: str, new: str) -> None:
        """Give a file a second name."""
        self._call(old, lambda: self._disk.link(old, new), changes=True)

    def unlink(self, path: str) -> None:
        """Remove a file; a missing file is not an error."""
        self._call(path, lambda: self._disk.unlink(path), changes=True)

    def remove_tree(self, directory: str) -> None:
        """Remove a directory with everything in it."""
        self._call(directory, lambda: self._disk.remove_tree(directory), changes=True)

    def sync_dir(self, directory: str, site: Site) -> None:
        """Make the entries of a directory durable."""
        self._call(directory, lambda: self._disk.sync_dir(directory, site), changes=True)

    def free_bytes(self, directory: str) -> int:
        """Return how many bytes new files below a directory may take."""
        return self._call(directory, lambda: self._disk.free_bytes(directory))

    def lock(self, path: str, content: bytes) -> Lock:
        """Take an exclusive lock, without a time limit."""
        return self._disk.lock(path, content)


class PatientFile:
    """A file on which every call has a time limit."""

    def __init__(self, file: File, path: str, patience: Patience) -> None:
        self._file = file
        self._path = path
        self._patience = patience

    def pread(self, size: int, offset: int) -> bytes:
        """Read up to `size` bytes from `offset`."""
        return self._patience.call(lambda: self._file.pread(size, offset), self._path)

    def pread_into(self, view: memoryview, offset: int) -> int:
        """Read into a view. A read that was given up can only write to its own buffer, not to the caller's."""
        content = self.pread(len(view), offset)
        view[: len(content)] = content
        return len(content)

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        """Return None: whether a read would wait is not known here."""
        return None

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> int:
        """Write the buffers at `offset`, and return the number of bytes written."""
        return self._patience.call(lambda: self._file.pwritev(buffers, offset), self._path, changes=True)

    def sync(self, site: Site) -> None:
        """Make what was written durable."""
        self._patience.call(lambda: self._file.sync(site), self._path, changes=True)

    def write_out(self) -> None:
        """Make the kernel write what is pending."""
        self._patience.call(self._file.write_out, self._path, changes=True)

    def truncate(self, size: int) -> None:
        """Cut or extend the file to `size` bytes."""
        self._patience.call(lambda: self._file.truncate(size), self._path, changes=True)

    def size(self) -> int:
        """Return the length in bytes."""
        return self._patience.call(self._file.size, self._path)

    def close(self) -> None:
        """Close the file on another thread, because that may hang too."""
        self._patience.leave(self._file.close)
