"""Takes the single-writer lock for tools: a tool that changes or verifies a directory must be alone in it."""

from collections.abc import Iterator
from contextlib import contextmanager

from driftq.errors import DataDirLockedError, StartError
from driftq.storage.layout import Layout
from driftq.system.lock import LockHeldError


@contextmanager
def held(layout: Layout) -> Iterator[None]:
    """Hold the lock of the directory. Raise StartError, with what to do, if it cannot be taken."""
    check_directory(layout)
    try:
        lock = layout.disk.lock(layout.lock_path, b"")
    except LockHeldError:
        raise DataDirLockedError(f"{layout.data} is in use by a server; stop it first") from None
    except OSError as error:
        raise StartError(f"{layout.data} cannot be locked: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


def check_directory(layout: Layout) -> None:
    """Raise StartError if this is not a data directory."""
    if not layout.disk.exists(f"{layout.data}/wal") and not layout.disk.exists(layout.meta_dir):
        raise StartError(f"{layout.data} is not a data directory: it has neither wal nor meta; check --data-dir")
