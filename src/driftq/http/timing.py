"""The `performance` object (http-v0 §1.8)."""

from msgspec import Struct

_NS_PER_MS = 1_000_000


class Performance(Struct, frozen=True, omit_defaults=True):
    """How long it took, and what it took; a field that has no meaning for a call is left out."""

    server_total_ms: float
    wal_append_ms: float | None = None
    fsync_ms: float | None = None
    records_scanned: int | None = None
    throttle_wait_ms: float | None = None
    cold_segments_read: int | None = None


def since_ms(began_ns: int, now_ns: int) -> float:
    """Milliseconds, to the microsecond."""
    return round((now_ns - began_ns) / _NS_PER_MS, 3)
