"""What a connection says to a request that breaks a rule or a limit, in the form of the API it was meant for."""

from driftq.http.errors import refusal
from driftq.http.reply import Reply
from driftq.http.request import Headers, Request
from driftq.http.v1 import errors as broker
from driftq.http.v1.form import labelled_reply
from driftq.seam.entropy import SystemEntropy

_ENTROPY = SystemEntropy()
_BROKER = (b"/v1", b"/metrics")


def refused(target: bytes, headers: Headers, message: str, status: int) -> Reply:
    """The reply; of the target and the headers there is what was read of them."""
    if not target.startswith(_BROKER):
        return refusal("invalid_request", message, status=status)
    return labelled_reply(Request("", "", headers=headers), broker.refusal(status, message), _ENTROPY)
