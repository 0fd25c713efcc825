"""File handles of this process."""

import os

_OPEN = ("/proc/self/fd", "/dev/fd")


def count_handles() -> int:
    """Return how many handles are open; 0 where the system does not say."""
    for directory in _OPEN:
        try:
            return len(os.listdir(directory))
        except OSError:
            continue
    return 0
