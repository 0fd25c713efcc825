"""Random bytes for identifiers, and for nothing else."""

import os
from typing import Protocol


class Entropy(Protocol):
    """A source of random bytes."""

    def token(self, size: int) -> bytes:
        """Return `size` bytes that cannot be predicted."""
        ...


class SystemEntropy:
    """The random generator of the operating system."""

    __slots__ = ()

    def token(self, size: int) -> bytes:
        """Return `size` bytes from the kernel."""
        return os.urandom(size)
