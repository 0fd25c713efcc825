"""Decides which calls are retried, and after which pause; it performs no I/O.

A call is always retried if it cannot have had an effect: a full queue, a full disk, a server that is starting or
stopping, a connection that was never made. If it may have had an effect, it is retried only if a second execution does
no harm: reads, calls that set a state, and writes and messages with an idempotency key.
"""

from enum import Enum

from msgspec import Struct

from driftq.client.errors import ApiError, ClientError, DiskFullError, ThrottledError, TransportError, UnavailableError
from driftq.system.entropy import Entropy

_RETRIED = frozenset((429, 500, 502, 503, 504, 507))
_UNTOUCHED = frozenset(("not_ready", "shutting_down", "segment_unavailable", "cold_unavailable"))
_IN_FLIGHT = "idempotency: key already in-flight"


class Repeat(Enum):
    """What happens if the server executes the same call twice."""

    SAME = "same"
    """The second execution changes nothing more."""
    AGAIN = "again"
    """The call might take effect twice."""


class Retries(Struct, frozen=True, kw_only=True):
    """The number of retries, and the pauses in seconds when the server gives no `Retry-After`."""

    count: int = 3
    backoff_s: float = 0.1
    backoff_max_s: float = 2.0

    def pause_s(self, attempt: int, error: ClientError | None, entropy: Entropy) -> float:
        """Return the seconds to wait after attempt number `attempt`, counted from 0.

        That is the time that the server asks for. Otherwise it doubles with each attempt up to `backoff_max_s`, and a
        random part of up to a half is subtracted, so that clients that failed together do not retry together.
        """
        asked = error.retry_after if isinstance(error, ApiError) else None
        if asked is not None:
            return asked
        most = min(self.backoff_max_s, self.backoff_s * (1 << min(attempt, 30)))
        return most * (1 - entropy.token(1)[0] / 512)


def asked_s(error: ClientError | None) -> float:
    """Return the seconds that the server asks to wait; 0 if it does not ask."""
    return (error.retry_after or 0.0) if isinstance(error, ApiError) else 0.0


def may_retry(error: ClientError, repeat: Repeat) -> bool:
    """Whether the same call may be made again after this error."""
    if isinstance(error, TransportError):
        return repeat is Repeat.SAME or not error.sent
    if not isinstance(error, ApiError):
        return False
    if repeat is Repeat.SAME:
        # The key in flight is that of the first try of this call, whose answer was lost.
        return error.status in _RETRIED or error.message == _IN_FLIGHT
    if isinstance(error, ThrottledError | DiskFullError):
        return True
    return isinstance(error, UnavailableError) and error.code in _UNTOUCHED
