"""All numeric limits and defaults (http-v0 §3, §16, §19). The defaults of settings are here too."""

from msgspec import Struct

MIB = 1 << 20
WAL_FILE_BYTES_MAX = 2 << 30
"""A place in the WAL has 32 bits for the offset in its file, and the last write of a file may exceed its size."""


class Limits(Struct, frozen=True, kw_only=True):
    """Limits of requests and of the server. Every field is a setting. 0 means no limit for stored amounts."""

    batch_records_max: int = 10_000
    record_bytes_max: int = MIB
    body_bytes_max: int = 64 * MIB
    meta_bytes_max: int = 16 << 10
    tag_bytes_max: int = 256
    node_bytes_max: int = 128
    page_records_max: int = 1000
    watch_topics_max: int = 256
    claim_max: int = 1000
    topics_max: int = 100_000
    total_bytes_max: int = 0
    routers_max: int = 10_000
    watch_sessions_max: int = 10_000
    sse_connections_max: int = 10_000
    sse_connections_per_key_max: int = 1000
    inflight_per_key_max: int = 1000


META_KEYS_MAX = 64
KEY_BYTES_MAX = 256
NESTING_MAX = 128

PAGE_RECORDS = 256
PAGE_BYTES = MIB
PAGE_BYTES_MAX = 8 * MIB

BULK_RECORDS, BULK_RECORDS_MAX = 100_000, 1_000_000
BULK_BYTES_MAX = 64 * MIB
"""Limit of one page in Arrow format, in bytes."""
ARROW_WRITE_RECORDS_MAX = 100_000

LEASE_MS_MIN, LEASE_MS_MAX = 100, 86_400_000
CLAIM_JITTER_MS_MAX = 5000
DELAY_MS_MAX = 86_400_000
PRIORITY_MAX = 1000

COMMIT_BYTES_MAX = 1024 * MIB
"""Bytes of one publication of staged writes. They are all in one WAL file."""

WRITER_BYTES_MAX = 128
"""Length of the name of a writer that stages parts, in bytes."""

CURSORS_MAX = 1000
"""Limit of named cursors per topic."""

U64_MAX = (1 << 64) - 1
"""The largest value of a u64 field of the contract."""

BLOCK_RECORDS_MAX = 1024
BLOCK_BYTES_MAX = 256 << 10
OWN_BLOCK_RECORDS = 256
"""A write of at least this many records becomes a block of its own; smaller writes are gathered."""

WAL_QUEUE_MAX = 4096
WAL_QUEUE_BYTES_MAX = 256 * MIB
WAL_FILE_BYTES = 64 * MIB

RESERVE_MIN, RESERVE_MAX = 256, 65_536
"""Minimum and maximum of the seqs that one reservation covers, for `disk` writes."""

IDEMPOTENCY_WINDOW_MS = 120_000
LEASE_MS = 30_000
