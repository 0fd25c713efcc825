"""Entropy from a seed."""

from driftq.system.entropy import Entropy
from driftq.testing import SeededEntropy


def _as_protocol(entropy: SeededEntropy) -> Entropy:
    return entropy


def test_the_same_seed_gives_the_same_tokens() -> None:
    first = _as_protocol(SeededEntropy(7))
    second = SeededEntropy(7)
    tokens = [first.token(16) for _ in range(5)]
    assert tokens == [second.token(16) for _ in range(5)]
    assert len(set(tokens)) == 5
    assert {len(token) for token in tokens} == {16}


def test_another_seed_gives_others() -> None:
    assert SeededEntropy(1).token(16) != SeededEntropy(2).token(16)
