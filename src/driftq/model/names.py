"""Which names a topic, a router or a cursor may have. A name is a key, never part of a path.

The broker's topic NAME is stored as `@NAME`. `/v0` users cannot choose such a name, because their topics begin with a
letter or a digit, so the two never collide. Bytes of NAME outside `A-Z a-z 0-9 . _ : -` are percent-encoded (`a b` is
`@a%20b`): every broker name has exactly one stored name, and the stored name can be typed in URLs and shells.
"""

import re
from urllib.parse import quote, unquote

from driftq.errors import InvalidRequestError

NAME_BYTES_MAX = 255
DLQ = "dlq."
"""Prefix of the names of dead-letter topics."""
_CONTROL = re.compile("[\x00-\x1f\x7f]")


def check_name(topic: str) -> None:
    """Raise InvalidRequestError for a name that a topic of the broker cannot have."""
    if not topic:
        raise InvalidRequestError("name is required")
    if len(topic.encode()) > NAME_BYTES_MAX or _CONTROL.search(topic) is not None:
        raise InvalidRequestError("invalid name")


_TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}", re.ASCII)
_BROKER_TOPIC = re.compile(r"@(?:[A-Za-z0-9._:-]|%[0-9A-F]{2})+", re.ASCII)
_ROUTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}", re.ASCII)


BROKER_MARK = "@"
"""The first character of every stored name of a broker topic."""


def broker_topic(name: str) -> str:
    """Return the stored name of the broker's topic NAME."""
    return BROKER_MARK + quote(name, safe=":").replace("~", "%7E")


def is_broker_topic(topic: str) -> bool:
    """Whether a stored name is that of a broker topic."""
    return topic.startswith(BROKER_MARK)


def broker_name(topic: str) -> str:
    """Return the broker's own name of a topic, given its stored name."""
    return unquote(topic.removeprefix(BROKER_MARK))


def is_topic_name(name: str) -> bool:
    """Whether a `/v0` user may give a topic this name."""
    return _TOPIC.fullmatch(name) is not None


def is_stored_name(name: str) -> bool:
    """Whether a topic of either API can have this name."""
    return is_topic_name(name) or _BROKER_TOPIC.fullmatch(name) is not None


def is_router_name(name: str) -> bool:
    """Whether a router, or a cursor, may have this name."""
    return _ROUTER.fullmatch(name) is not None


def check_stored_name(name: str) -> None:
    """Raise InvalidRequestError for a name that no topic of either API can have."""
    if not is_stored_name(name):
        raise InvalidRequestError(
            "a topic name has 1 to 255 characters of A-Z a-z 0-9 . _ : - and begins with a letter or a digit",
            detail={"topic": name},
        )


def check_router_name(name: str) -> None:
    """Raise InvalidRequestError for a name that no router or cursor can have."""
    if not is_router_name(name):
        raise InvalidRequestError(
            "a router name has 1 to 255 characters of A-Z a-z 0-9 . _ : - > and begins with a letter or a digit",
            detail={"router": name},
        )
