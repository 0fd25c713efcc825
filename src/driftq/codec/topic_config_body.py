"""Decode the config of a topic, or changes of one, from a request body (http-v0 §5, §6.1, §6.5)."""

from msgspec.json import Decoder

from driftq.codec import json_text
from driftq.errors import InvalidRequestError
from driftq.model.limits import NESTING_MAX, U64_MAX
from driftq.model.topic_config import TopicConfig, TopicPatch

_CONFIG = Decoder(TopicConfig)
_PATCH = Decoder(TopicPatch)

_I32_MIN, _I32_MAX = -(1 << 31), (1 << 31) - 1
_U64_FIELDS = (
    "ttl_ms",
    "cap_records",
    "cap_bytes",
    "idempotency_window_ms",
    "lease_ms",
    "claim_jitter_ms",
    "max_deliveries",
)


def decode_config(body: bytes) -> TopicConfig:
    """Return the config in a body. Raises InvalidRequestError."""
    body = json_text.compact(body)
    config = json_text.parse(_CONFIG, body)
    json_text.check_depth(body, NESTING_MAX)
    check_ranges(config)
    return config


def decode_patch(body: bytes) -> TopicPatch:
    """Return the changes of a config in a body. Raises InvalidRequestError."""
    body = json_text.compact(body)
    patch = json_text.parse(_PATCH, body)
    json_text.check_depth(body, NESTING_MAX)
    check_ranges(patch.over(TopicConfig()))
    return patch


def check_ranges(config: TopicConfig) -> None:
    """Raise InvalidRequestError for a number outside the range of its field."""
    for field in _U64_FIELDS:
        if not 0 <= getattr(config, field) <= U64_MAX:
            raise InvalidRequestError(f"config.{field} is not a 64-bit unsigned integer")
    if config.priority is not None and not _I32_MIN <= config.priority <= _I32_MAX:
        raise InvalidRequestError("config.priority is not a 32-bit integer")
