"""Which names a topic of the broker may have (http-v1 §3.4)."""

import re

from driftq.errors import InvalidRequestError

NAME_BYTES_MAX = 255
DLQ = "dlq."
"""Begins the names of topics of dead letters."""
_CONTROL = re.compile("[\x00-\x1f\x7f]")


def check_name(topic: str) -> None:
    """Refuse a name that a topic of the broker cannot have. Raises InvalidRequestError."""
    if not topic:
        raise InvalidRequestError("name is required")
    if len(topic.encode()) > NAME_BYTES_MAX or _CONTROL.search(topic) is not None:
        raise InvalidRequestError("invalid name")
