"""The directory for the Unix sockets between Spark and its Python processes on this machine.

Rows pass through Unix sockets at a lower cost than through the loopback network. Spark asks for no secret on such a
socket: any process that can open it may run code in a worker. So the directory belongs to this user and is closed to
all others. If that is not possible, there is no directory and Spark uses the network.

Each process that starts Spark has its own subdirectory, with a lock that it shares with its JVM. Sockets are left over
if a process is killed or a program ends without stopping its session. The lock is free then, and the next process that
starts Spark removes the subdirectory. It must not be removed earlier: a JVM outlives its program for a while.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from driftq.pipeline.errors import PipelineError

SERVER_VARIABLE = "DRIFTQ_SESSION_SERVER"

LONGEST = 100
"""Maximum length of a socket's path in bytes. Systems allow 104 or 108."""
_BELOW = len("/01234567/.00000000-0000-0000-0000-000000000000.sock")
_LOCK = "lock"


class SocketDirectory(NamedTuple):
    """The socket directory of a process, and its lock."""

    place: Path
    lock: int
    """An open file descriptor. The directory is not removed while any process has it open."""


@cache
def socket_directory() -> SocketDirectory | None:
    """Return the directory of this process, made on first use. None if there cannot be a private one."""
    root = Path(tempfile.gettempdir()) / f"driftq-spark-{os.getuid()}"
    if len(os.fsencode(root)) + _BELOW > LONGEST:
        return None
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        if not _is_private(root.lstat()):
            return None
        _sweep(root)
        return _made(root)
    except OSError:
        return None


def inherited() -> tuple[int, ...]:
    """Return the file descriptors that a JVM must inherit, so that the directory lasts as long as the JVM."""
    found = socket_directory()
    return () if found is None else (found.lock,)


def private_directory(name: str) -> Path:
    """Return a directory for temporary files that only this user can use. Raise PipelineError if there cannot be one.

    Another user may have made a directory of that name in a place where everybody can.
    """
    path = Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PipelineError(f"{path} is not a directory of this user; remove it, or set TMPDIR to another directory")
    path.chmod(0o700)
    return path


def _is_private(found: os.stat_result) -> bool:
    return stat.S_ISDIR(found.st_mode) and not stat.S_IMODE(found.st_mode) & 0o077 and found.st_uid == os.getuid()


def _made(root: Path) -> SocketDirectory:
    """Make a directory of this process. It is locked before it gets the name by which `_sweep` finds it."""
    fresh = Path(tempfile.mkdtemp(prefix=".", dir=root))
    lock = os.open(fresh / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return SocketDirectory(fresh.rename(root / fresh.name.lstrip(".")), lock)


def _sweep(root: Path) -> None:
    """Remove the directories whose processes have all ended."""
    for place in root.glob("[!.]*"):
        with suppress(OSError):
            lock = os.open(place / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(place, ignore_errors=True)
            finally:
                os.close(lock)
