"""Randomness, as one seam: identifiers and nothing else."""

import os
from typing import Protocol

_POOL_BYTES = 1 << 10


class Entropy(Protocol):
    """Where random bytes come from."""

    def token(self, size: int) -> bytes:
        """So many unpredictable bytes."""
        ...


class Pool:
    """Small tokens cut from large ones, for who needs many of them: on one thread, and each byte is given once."""

    __slots__ = ("_left", "_source")

    def __init__(self, source: Entropy) -> None:
        self._source = source
        self._left = b""

    def token(self, size: int) -> bytes:
        """So many bytes."""
        if len(self._left) < size:
            self._left = self._source.token(max(size, _POOL_BYTES))
        token, self._left = self._left[:size], self._left[size:]
        return token


class SystemEntropy:
    """The operating system's generator."""

    __slots__ = ()

    def token(self, size: int) -> bytes:
        """So many bytes from the kernel."""
        return os.urandom(size)
