"""The single-writer lock, for tools: whoever changes or judges a directory must be the only one in it."""

from collections.abc import Iterator
from contextlib import contextmanager

from driftq.errors import DataDirLockedError, StartError
from driftq.storage.layout import Layout
from driftq.system.lock import LockHeldError


@contextmanager
def held(layout: Layout) -> Iterator[None]:
    """Nobody else has the directory meanwhile. Raises StartError, in a line that says what to do."""
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
    """Is this a data directory at all? Raises StartError."""
    if not layout.disk.exists(f"{layout.data}/wal") and not layout.disk.exists(layout.meta_dir):
        raise StartError(f"{layout.data} is no data directory: it has neither wal nor meta; give one with --data-dir")
