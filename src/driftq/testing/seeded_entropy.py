"""A source of random bytes that a seed decides."""

import random


class SeededEntropy:
    """Tokens in a sequence fixed by the seed: a repeated run makes the same identifiers."""

    __slots__ = ("_random",)

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def token(self, size: int) -> bytes:
        """Return the next `size` bytes of the sequence."""
        return self._random.randbytes(size)
