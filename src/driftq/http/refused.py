"""What a connection says to a request that breaks a rule or a limit, in the form of the API it was meant for."""

from driftq.http.errors import refusal
from driftq.http.reply import Reply
from driftq.http.v1 import errors as broker
from driftq.http.v1.form import plain

_BROKER = (b"/v1", b"/metrics")


def refused(target: bytes, message: str, status: int) -> Reply:
    """The reply; of the target there is what was read of it."""
    if not target.startswith(_BROKER):
        return refusal("invalid_request", message, status=status)
    return plain(broker.refusal(status, message))
