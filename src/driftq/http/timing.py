"""The `performance` object (http-v0 §1.8)."""

_NS_PER_MS = 1_000_000
_LEAST_MS = 0.001


def since_ms(began_ns: int, now_ns: int) -> float:
    """Milliseconds, to the microsecond."""
    return round((now_ns - began_ns) / _NS_PER_MS, 3)


def shown_sync_ms(sync_ns: int) -> float:
    """A sync as a write shows it: exactly nothing where there was none, and more than nothing where there was one."""
    return max(_LEAST_MS, round(sync_ns / _NS_PER_MS, 3)) if sync_ns else 0.0
