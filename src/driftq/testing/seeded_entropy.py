"""Randomness that a seed decides."""

import random


class SeededEntropy:
    """Tokens in a sequence fixed by the seed: a replayed run makes the same identifiers."""

    __slots__ = ("_random",)

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def token(self, size: int) -> bytes:
        """The next so many bytes."""
        return self._random.randbytes(size)
