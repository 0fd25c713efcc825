"""Which calls are made again, and when. Pure.

What a server refuses before it does anything may always be asked again: a full queue, a full disk, a server that starts
or drains, a connection that was never made. Where it is not known whether a call had an effect, only one that may have
it twice is made again: reads, calls that name a state, writes and messages with an idempotency key.
"""

from enum import Enum

from msgspec import Struct

from driftq.client.errors import ApiError, ClientError, DiskFullError, ThrottledError, TransportError, UnavailableError
from driftq.system.entropy import Entropy

_RETRIED = frozenset((429, 500, 502, 503, 504, 507))
_UNTOUCHED = frozenset(("not_ready", "shutting_down", "segment_unavailable", "cold_unavailable"))
_IN_FLIGHT = "idempotency: key already in-flight"


class Repeat(Enum):
    """What a second execution of the same call does."""

    SAME = "same"
    """Nothing more than the first."""
    AGAIN = "again"
    """It might take effect twice."""


class Retries(Struct, frozen=True, kw_only=True):
    """How often, and how long to wait where the server does not say."""

    count: int = 3
    backoff_s: float = 0.1
    backoff_max_s: float = 2.0

    def pause_s(self, attempt: int, error: ClientError | None, entropy: Entropy) -> float:
        """How long to wait behind attempt number `attempt`, from 0: what the server asks for, else twice as long each
        time, less up to a half by chance, so that those who failed together do not come back together.
        """
        asked = error.retry_after if isinstance(error, ApiError) else None
        if asked is not None:
            return asked
        most = min(self.backoff_max_s, self.backoff_s * (1 << min(attempt, 30)))
        return most * (1 - entropy.token(1)[0] / 512)


def asked_s(error: ClientError | None) -> float:
    """How long a server asks to wait; 0 where it does not."""
    return (error.retry_after or 0.0) if isinstance(error, ApiError) else 0.0


def may_retry(error: ClientError, repeat: Repeat) -> bool:
    """Is there sense in making the same call again?"""
    if isinstance(error, TransportError):
        return repeat is Repeat.SAME or not error.sent
    if not isinstance(error, ApiError):
        return False
    if repeat is Repeat.SAME:
        # A key that is in flight is that of the first try, whose answer got lost.
        return error.status in _RETRIED or error.message == _IN_FLIGHT
    if isinstance(error, ThrottledError | DiskFullError):
        return True
    return isinstance(error, UnavailableError) and error.code in _UNTOUCHED
