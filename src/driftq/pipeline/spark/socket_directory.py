"""Where Spark and its Python processes on this machine meet: sockets in a directory that nobody else may enter.

Rows come through them at a lower cost than through the loopback network. Spark asks nobody for a secret on such a
socket: who can open it may run code in a worker. So the directory is this user's and closed to all others, or there is
none, and the network is used.

Below it each process that starts Spark has a directory of its own, with a lock that it shares with its JVM. Sockets
stay behind where somebody was killed or a program ended without stopping its session; the lock is free then, and the
next process that comes removes that directory. Nobody may earlier: a JVM outlives its program for a while.
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

SERVER_VARIABLE = "DRIFTQ_SESSION_SERVER"
PUSH_VARIABLE = "DRIFTQ_SESSION_PUSH"


LONGEST = 100
"""Of a socket's path, in bytes; systems allow 104 or 108."""
_BELOW = len("/01234567/.00000000-0000-0000-0000-000000000000.sock")
_LOCK = "lock"


class Meeting(NamedTuple):
    """The directory of a process."""

    place: Path
    lock: int
    """A file descriptor: nobody removes the directory for as long as a process has it open."""


@cache
def meeting() -> Meeting | None:
    """That of this process, made when it is first asked for; None where there can be none that is safe."""
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
    """What a JVM is to have open, for the directory to last as long as it does."""
    found = meeting()
    return () if found is None else (found.lock,)


def _is_private(found: os.stat_result) -> bool:
    return stat.S_ISDIR(found.st_mode) and not stat.S_IMODE(found.st_mode) & 0o077 and found.st_uid == os.getuid()


def _made(root: Path) -> Meeting:
    """Locked before it has the name by which a sweep finds it."""
    fresh = Path(tempfile.mkdtemp(prefix=".", dir=root))
    lock = os.open(fresh / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return Meeting(fresh.rename(root / fresh.name.lstrip(".")), lock)


def _sweep(root: Path) -> None:
    """Remove the directories whose processes are all gone."""
    for place in root.glob("[!.]*"):
        with suppress(OSError):
            lock = os.open(place / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(place, ignore_errors=True)
            finally:
                os.close(lock)
