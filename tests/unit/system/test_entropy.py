"""The operating system's entropy."""

from driftq.system.entropy import Entropy, SystemEntropy


def _as_protocol(entropy: SystemEntropy) -> Entropy:
    return entropy


def test_tokens_have_their_length_and_do_not_repeat() -> None:
    entropy = _as_protocol(SystemEntropy())
    tokens = {entropy.token(16) for _ in range(100)}
    assert len(tokens) == 100
    assert {len(token) for token in tokens} == {16}
