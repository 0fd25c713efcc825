"""How much room a file system has."""

import os
from typing import NamedTuple


class Space(NamedTuple):
    """Bytes of a file system."""

    free: int
    """What a user without privileges may take."""
    total: int


def space_at(path: str) -> Space:
    """Return the room of the file system that a path is on. Raises OSError."""
    found = os.statvfs(path)
    return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)
