"""Settings: flags and `DRIFTQ_` environment names become one frozen value. What cannot be parsed takes its default."""

from collections.abc import Mapping

from msgspec import Struct

from driftq.model.limits import MIB, Limits


class Settings(Struct, frozen=True, kw_only=True):
    """Everything a server can be told."""

    host: str = "127.0.0.1"
    port: int = 4000
    port_file: str | None = None
    data_dir: str = "./driftq-data"
    cold_dir: str | None = None
    wal_shards: int = 1
    wal_file_bytes: int = 64 * MIB
    segment_max_events: int = 10_000
    segment_max_bytes: int = 64 * MIB
    segment_max_age_ms: int = 3_600_000
    hot_retain_segments: int = 4
    hot_retain_bytes: int = 0
    cache_bytes: int = 256 * MIB
    checkpoint_wal_bytes: int = 64 * MIB
    checkpoint_interval_ms: int = 60_000
    log_level: str = "info"
    limits: Limits = Limits()


def _number(environment: Mapping[str, str], name: str, default: int, *, least: int = 0) -> int:
    text = environment.get(f"DRIFTQ_{name}", "")
    try:
        value = int(text)
    except ValueError:
        return default
    return value if value >= least else default


def from_environment(environment: Mapping[str, str]) -> Settings:
    """The settings that the environment gives."""
    standard, limits = Settings(), Limits()
    host = environment.get("DRIFTQ_HOST") or standard.host
    port = _number(environment, "PORT", standard.port)
    if host.count(":") == 1:
        host, _, text = host.partition(":")
        port = int(text) if text.isdecimal() else port
    return Settings(
        host=host,
        port=port,
        port_file=environment.get("DRIFTQ_PORT_FILE") or None,
        data_dir=environment.get("DRIFTQ_DATA_DIR") or standard.data_dir,
        cold_dir=environment.get("DRIFTQ_COLD_DIR") or None,
        wal_shards=_number(environment, "WAL_SHARDS", standard.wal_shards, least=1),
        segment_max_events=_number(environment, "SEGMENT_MAX_EVENTS", standard.segment_max_events, least=1),
        segment_max_bytes=_number(environment, "SEGMENT_MAX_BYTES", standard.segment_max_bytes),
        segment_max_age_ms=_number(environment, "SEGMENT_MAX_AGE_MS", standard.segment_max_age_ms),
        hot_retain_segments=_number(environment, "HOT_RETAIN_SEGMENTS", standard.hot_retain_segments),
        hot_retain_bytes=_number(environment, "HOT_RETAIN_BYTES", standard.hot_retain_bytes),
        cache_bytes=_number(environment, "CACHE_BYTES", standard.cache_bytes),
        log_level=environment.get("DRIFTQ_LOG_LEVEL") or environment.get("DRIFTQ_LOG") or standard.log_level,
        limits=Limits(
            batch_records_max=_number(environment, "MAX_BATCH_RECORDS", limits.batch_records_max),
            record_bytes_max=_number(environment, "MAX_RECORD_BYTES", limits.record_bytes_max),
            body_bytes_max=_number(environment, "MAX_BODY_BYTES", limits.body_bytes_max),
            meta_bytes_max=_number(environment, "MAX_META_BYTES", limits.meta_bytes_max),
            tag_bytes_max=_number(environment, "MAX_TAG_BYTES", limits.tag_bytes_max),
            node_bytes_max=_number(environment, "MAX_NODE_BYTES", limits.node_bytes_max),
            page_records_max=_number(environment, "MAX_LIMIT", limits.page_records_max, least=1),
            topics_max=_number(environment, "MAX_TOPICS", limits.topics_max),
            total_bytes_max=_number(environment, "MAX_TOTAL_BYTES", limits.total_bytes_max),
        ),
    )
