"""Randomness, as one seam: identifiers and nothing else."""

import os
from typing import Protocol


class Entropy(Protocol):
    """Where random bytes come from."""

    def token(self, size: int) -> bytes:
        """So many unpredictable bytes."""
        ...


class SystemEntropy:
    """The operating system's generator."""

    __slots__ = ()

    def token(self, size: int) -> bytes:
        """So many bytes from the kernel."""
        return os.urandom(size)
