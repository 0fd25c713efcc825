"""Tokens out of a pool."""

from driftq.seam.entropy import Pool
from driftq.testing import SeededEntropy


class _Counted:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self._source = SeededEntropy(1)

    def token(self, size: int) -> bytes:
        self.asked += 1
        return self._source.token(size)


def test_tokens_are_of_their_size_and_none_comes_twice() -> None:
    source = _Counted()
    pool = Pool(source)
    tokens = [pool.token(12) for _ in range(500)] + [pool.token(5000)]
    assert {len(token) for token in tokens} == {12, 5000}
    assert len(set(tokens)) == len(tokens)
    assert source.asked < 10
