"""The machine: boot id, open handles, memory and environment of the process, and room on a file system."""

import ctypes
import gc
import mmap
import os
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, cast
from uuid import UUID

BOOT_ID_BYTES = 16
UNKNOWN_BOOT = bytes(BOOT_ID_BYTES)
"""The boot id on a system that has none. Never compare two of these: they do not mean the same boot."""
_PATH = Path("/proc/sys/kernel/random/boot_id")


def read_boot_id(path: Path = _PATH) -> bytes:
    """Return the 16 random bytes that Linux chose for this boot, or `UNKNOWN_BOOT`."""
    try:
        return UUID(path.read_text(encoding="ascii").strip()).bytes
    except (OSError, ValueError):
        return UNKNOWN_BOOT


_OPEN = ("/proc/self/fd", "/dev/fd")


def count_handles() -> int:
    """Return the number of open file handles, or 0 if the system does not provide it."""
    for directory in _OPEN:
        try:
            return len(os.listdir(directory))
        except OSError:
            continue
    return 0


_YOUNG_MAX = 10_000
"""The collector looks for cycles after this many new objects. Python's default of 700 is a few requests."""

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8


def keep_freed_memory() -> bool:
    """Ask the C library to keep freed memory for the next block instead of returning it to the kernel.

    Blocks are 100 KiB and more, made and freed thousands of times a second. By default, glibc returns such memory at
    once and faults it in again page by page, which costs ten times as much as building the block
    (`docs/benchmarks.md`). Returns whether the library accepted the settings; other libraries are left as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, 32 << 20), (_TRIM_THRESHOLD, 16 << 20), (_TOP_PAD, 8 << 20))
    understood = [mallopt(option, value) == 1 for option, value in settings]
    return all(understood)


def give_freed_memory_back() -> bool:
    """Return freed memory to the kernel. For quiet times: it takes some milliseconds. False if none was returned."""
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (OSError, AttributeError):
        return False


def collect_seldom() -> None:
    """Look for cycles less often: nearly all objects of a request are freed when it is answered."""
    gc.set_threshold(_YOUNG_MAX, *gc.get_threshold()[1:])


def keep_for_good() -> None:
    """Exclude all existing objects from the search for cycles: a full search of them would stop the loop for long."""
    gc.freeze()


def zeros(size: int, *, all_used: bool = False) -> bytes:
    """Return `size` zero bytes, at least one, that can be filled in through a `memoryview`.

    Pages that are never filled in take no memory. `all_used`: all of it will be filled in, so the kernel may provide
    memory in steps of 2 MiB instead of page by page, which takes a quarter of the time.
    """
    room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if all_used and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without large pages provides small ones
            room.madvise(mmap.MADV_HUGEPAGE)
    return cast("bytes", room)


class DiskUsage(NamedTuple):
    """Free and total bytes of a file system."""

    free: int
    """Bytes that a user without privileges may use."""
    total: int


def space_at(path: str) -> DiskUsage:
    """Return the free and total bytes of the file system of a path. Raises OSError."""
    found = os.statvfs(path)
    return DiskUsage(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


_ENV_START = 49
"""Place of the address of the environment in /proc/self/stat, after the name of the program: proc(5) counts from 1."""
_ENVIRONMENT = "/proc/self/environ"


def take_variable(name: str, environment: MutableMapping[str, str] = os.environ) -> str:
    """Return the value of an environment variable, and remove it; "" if there is none.

    Linux shows the environment with which a process has started in `/proc/<pid>/environ`, also that of a process
    that was forked later. So the value is overwritten there too.
    """
    value = environment.pop(name, "")
    if value and environment is os.environ:
        _overwrite(os.fsencode(f"{name}={value}"), len(os.fsencode(name)) + 1)
    return value


def _overwrite(entry: bytes, kept: int) -> None:
    """Overwrite an entry of the initial environment after its first `kept` bytes, if the system shows one."""
    try:
        with open(_ENVIRONMENT, "rb") as file:
            place = (b"\0" + file.read()).find(b"\0" + entry + b"\0")
        with open("/proc/self/stat", "rb") as file:
            start = int(file.read().rpartition(b")")[2].split()[_ENV_START - 2])
    except (OSError, ValueError, IndexError):
        return
    if place < 0 or start == 0:
        return
    if ctypes.string_at(start + place, len(entry)) == entry:
        ctypes.memset(start + place + kept, ord("*"), len(entry) - kept)
