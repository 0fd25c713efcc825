"""Which boot of the machine this is. A restart of the machine empties the page cache; one of the process does not."""

from pathlib import Path
from uuid import UUID

BOOT_ID_BYTES = 16
UNKNOWN_BOOT = bytes(BOOT_ID_BYTES)
"""The boot id on a system that has none. Never compare two of these: they do not mean the same boot."""
_PATH = Path("/proc/sys/kernel/random/boot_id")


def read_boot_id(path: Path = _PATH) -> bytes:
    """Return the 16 bytes that Linux made up for this boot, or `UNKNOWN_BOOT`."""
    try:
        return UUID(path.read_text(encoding="ascii").strip()).bytes
    except (OSError, ValueError):
        return UNKNOWN_BOOT
