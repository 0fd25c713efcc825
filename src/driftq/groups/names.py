"""How a topic of the broker is called in the engine, and which names it may have (http-v1 §3.4, §18.1)."""

import re
from hashlib import sha256

from driftq.errors import InvalidRequestError
from driftq.model.names import is_topic_name

NAME_BYTES_MAX = 255
PREFIX = "v1:"
DLQ = "dlq."
"""Begins the names of topics of dead letters."""
_HASHED = re.compile(r"id-[0-9a-f]*")
_CONTROL = re.compile("[\x00-\x1f\x7f]")


def log_name(topic: str) -> str:
    """The engine's name of a topic: its own where that fits the grammar, else made of its hash.

    A name that looks like a hash is hashed itself, so no two topics meet.
    """
    plain = PREFIX + topic
    if is_topic_name(plain) and _HASHED.fullmatch(topic) is None:
        return plain
    return f"{PREFIX}id-{sha256(topic.encode()).hexdigest()}"


def check_name(topic: str) -> None:
    """Refuse what cannot be a topic."""
    if not topic:
        raise InvalidRequestError("name is required")
    if len(topic.encode()) > NAME_BYTES_MAX or _CONTROL.search(topic) is not None:
        raise InvalidRequestError("invalid name")
