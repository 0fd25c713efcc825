"""The delay before a failed message is tried again (http-v1 §9)."""

from driftq.features.broker.state.group_partition import OpenDelivery
from driftq.model.broker_settings import BrokerSettings

_DELAY_MS_MAX = 86_400_000
_SHIFT_MAX = 40
"""After this number of doublings, every delay is above every cap."""


def delay_ms_of(settings: BrokerSettings, entry: OpenDelivery, asked_ms: int | None, *, nacked: bool) -> int:
    """Return the delay: that of the worker, or of the retry policy, or of the guard against quick nacks."""
    if asked_ms is not None:
        return min(asked_ms, _DELAY_MS_MAX)
    backoff, cap = entry.policy
    again = entry.attempts - 1
    if backoff > 0:
        return min(cap or _DELAY_MS_MAX, backoff << min(again, _SHIFT_MAX))
    if nacked and not entry.limit and again >= 1 and settings.nack_guard_ms:
        return min(settings.nack_guard_max_ms, settings.nack_guard_ms << min(again - 1, _SHIFT_MAX))
    return 0
