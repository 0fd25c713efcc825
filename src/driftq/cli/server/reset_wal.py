"""`--reset-wal`: start with an empty directory and lose nothing, because existing data is renamed (http-v1 §16)."""

import os

from driftq.config import Settings
from driftq.errors import DataDirLockedError, StartError
from driftq.model.units import MS_PER_S
from driftq.storage.layout import Layout
from driftq.system.clock import Clock
from driftq.system.disk import Disk
from driftq.system.lock import LockHeldError


def move_aside(settings: Settings, disk: Disk, clock: Clock) -> list[str]:
    """Rename the data and cold directories to `.bak.<seconds>` and return the new names. Raise StartError."""
    if not disk.exists(settings.data_dir):
        return []
    path = Layout(disk, settings.data_dir, settings.cold_dir).lock_path
    try:
        lock = disk.lock(path, b"")
    except LockHeldError:
        raise DataDirLockedError(f"{settings.data_dir} is in use by another server") from None
    except OSError as error:
        raise StartError(f"{settings.data_dir} cannot be used: {error.strerror}") from error
    try:
        return [_moved(disk, one, clock) for one in (settings.cold_dir, settings.data_dir) if one and disk.exists(one)]
    except OSError as error:
        raise StartError(f"{settings.data_dir} cannot be renamed: {error.strerror}") from error
    finally:
        lock.release()


def _moved(disk: Disk, path: str, clock: Clock) -> str:
    stem = f"{os.path.normpath(path)}.bak.{clock.wall_ms() // MS_PER_S}"
    name, number = stem, 0
    while disk.exists(name):
        number += 1
        name = f"{stem}.{number}"
    disk.rename(path, name)
    return name
