"""Which names a topic, a router or a cursor may have. A name is a key, never a part of a path."""

import re

from driftq.errors import InvalidRequestError

_TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}", re.ASCII)
_ROUTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}", re.ASCII)


def is_topic_name(name: str) -> bool:
    """Does the name follow the grammar?"""
    return _TOPIC.fullmatch(name) is not None


def is_router_name(name: str) -> bool:
    """Does the name follow the grammar of routers, which is that of cursors too?"""
    return _ROUTER.fullmatch(name) is not None


def check_topic_name(name: str) -> None:
    """Refuse a name that does not."""
    if not is_topic_name(name):
        raise InvalidRequestError(
            "a topic name is 1 to 255 of A-Z a-z 0-9 . _ : - and begins with a letter or a digit",
            detail={"topic": name},
        )


def check_router_name(name: str) -> None:
    """Refuse a name that does not follow it."""
    if not is_router_name(name):
        raise InvalidRequestError(
            "a router name is 1 to 255 of A-Z a-z 0-9 . _ : - > and begins with a letter or a digit",
            detail={"router": name},
        )
