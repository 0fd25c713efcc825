"""Names of the broker in the eyes of a key: its prefixes speak of `v1:<topic>` (http-v1 §1.1.12)."""

from driftq.http.request import Request

PREFIX = "v1:"


def may_name(request: Request, topic: str) -> bool:
    """May the key use this topic?"""
    access = request.access
    return not access.prefixes or access.may_name(PREFIX + topic)


def check_name(request: Request, topic: str) -> None:
    """Refuse a topic that the key may not use. Raises ForbiddenError."""
    access = request.access
    if access.prefixes:
        access.check_name(PREFIX + topic)
