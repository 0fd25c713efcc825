"""The settings of the broker API, `/v1` (http-v1 §16)."""

from typing import Literal

from msgspec import Struct

from driftq.model.limits import MIB


class BrokerSettings(Struct, frozen=True, kw_only=True):
    """Limits, times and switches of the broker. 0 means no limit, or never, where the help of a setting states it."""

    dev_limits: bool = False
    in_flight_max: int = 64
    stream_credit: int = 8
    partition_msgs_max: int = 100_000
    partition_bytes_max: int = 64 * MIB
    default_lease_ms: int = 2000
    lease_ms_max: int = 43_200_000
    redelivery_tick_ms: int = 250
    idem_ttl_ms: int = 600_000
    idem_consume_ttl_ms: int = 600_000
    retry_after_ms: int = 1000
    heartbeat_ms: int = 20_000
    nack_guard_ms: int = 100
    nack_guard_max_ms: int = 5000
    group_idle_ms: int = 3_600_000
    message_bytes_max: int = MIB
    partitions_max: int = 1024
    error_bytes_max: int = 4096
    stream_stall_ms: int = 30_000
    router: str | None = None
    """`module:attribute` of the hook that may change the topic or partition of a message."""
    router_url: str | None = None
    router_timeout_ms: int = 2000
    router_fail: Literal["open", "closed"] = "open"
    v1_retention_ms: int = 0
    accept_labels: bool = False
    durability: Literal["fsync", "disk", "ephemeral"] = "fsync"
    run_index_entries: int = 100_000


DEV_LIMITS: dict[str, int] = {
    "in_flight_max": 2,
    "stream_credit": 0,
    "partition_msgs_max": 2,
    "partition_bytes_max": 20,
    "heartbeat_ms": 0,
    "nack_guard_ms": 0,
    "nack_guard_max_ms": 0,
    "group_idle_ms": 0,
}
"""The values that `dev_limits` sets, unless they are set explicitly."""
