"""Caps on open requests and streams, for each API key and for the whole server (http-v0 §16).

A caller takes a slot before the work begins and releases it when the work ends, also after a failure. All counts change
on the event loop, so a cap is exact. Without API keys there are no limits per key: `key_id` is None, and only streams
are limited.
"""

from collections import Counter

from driftq.errors import ThrottledError
from driftq.model.limits import Limits

_RETRY_MS = 1000


class AdmissionSlot:
    """One open request or stream. Releasing it again has no effect."""

    __slots__ = ("_key_id", "_open", "_taken")

    def __init__(self, taken: "Counter[int | None]", key_id: int | None) -> None:
        self._taken = taken
        self._key_id = key_id
        self._open = True

    def release(self) -> None:
        """Give the slot back, so that it does not count against the caps any more."""
        if self._open:
            self._open = False
            self._taken[self._key_id] -= 1


class Admission:
    """Counts open requests and streams, and refuses more than the limits allow."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._requests: Counter[int | None] = Counter()
        self._streams: Counter[int | None] = Counter()

    @property
    def streams(self) -> int:
        """Return how many streams and sockets are open on the whole server."""
        return self._streams.total()

    def take_request(self, key_id: int | None) -> AdmissionSlot:
        """Count one more request of a key. Raises ThrottledError at the limit."""
        most = self._limits.inflight_per_key_max
        if key_id is not None and 0 < most <= self._requests[key_id]:
            raise _full("max_inflight_per_key", most, "this key has too many open requests")
        self._requests[key_id] += 1
        return AdmissionSlot(self._requests, key_id)

    def take_stream(self, key_id: int | None) -> AdmissionSlot:
        """Count one more stream or socket; a watch counts for the key that made its session. Raises ThrottledError."""
        limits = self._limits
        if 0 < limits.sse_connections_max <= self.streams:
            raise _full("max_sse_connections", limits.sse_connections_max, "the server has too many open streams")
        most = limits.sse_connections_per_key_max
        if key_id is not None and 0 < most <= self._streams[key_id]:
            raise _full("max_sse_connections_per_key", most, "this key has too many open streams")
        self._streams[key_id] += 1
        return AdmissionSlot(self._streams, key_id)


def _full(limit: str, most: int, message: str) -> ThrottledError:
    return ThrottledError(f"{message} ({limit}={most})", detail={"limit": limit, "max": most}, retry_after_ms=_RETRY_MS)
