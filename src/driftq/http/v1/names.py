"""Whether a key may use a broker topic: its prefixes are compared with the stored name, `@NAME` (http-v1 §1.1.12)."""

from driftq.http.request import Request
from driftq.model.names import broker_topic


def may_name(request: Request, topic: str) -> bool:
    """Whether the key may use this topic."""
    access = request.access
    return not access.prefixes or access.may_name(broker_topic(topic))


def check_name(request: Request, topic: str) -> None:
    """Refuse a topic that the key may not use. Raises ForbiddenError."""
    access = request.access
    if access.prefixes:
        access.check_name(broker_topic(topic))
