"""Settings: one table that defines the environment variables, the flags and the help.

The order of precedence is default < preset (`dev_limits`) < environment < flag. A value in the environment that cannot
be parsed is replaced by the default (http-v0 §18). Two cases refuse the start instead: a wrong port, because a server
on an unexpected port is of no use, and a number above the limit of its setting. A flag that cannot be parsed is an
error of the command line.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from msgspec import Struct, convert

from driftq.errors import StartError
from driftq.model.broker_settings import DEV_LIMITS, BrokerSettings
from driftq.model.limits import MIB, WAL_FILE_BYTES_MAX, Limits

Value = str | int | bool

_PREFIX = "DRIFTQ_"
_LIMITS = "limits."
_BROKER = "broker."
_PORT_MAX = 65_535


class Settings(Struct, frozen=True, kw_only=True):
    """All settings of a server."""

    host: str = "127.0.0.1"
    port: int = 4000
    port_file: str | None = None
    data_dir: str = "./driftq-data"
    cold_dir: str | None = None
    backup_dir: str | None = None
    wal_shards: int = 1
    wal_file_bytes: int = 64 * MIB
    wal_stop_grace_ms: int = 30_000
    writer_hang_limit_ms: int = 60_000
    disk_reserve_bytes: int = 4 * MIB
    segment_max_events: int = 10_000
    segment_max_bytes: int = 64 * MIB
    segment_max_age_ms: int = 3_600_000
    hot_retain_segments: int = 4
    hot_retain_bytes: int = 0
    cache_bytes: int = 256 * MIB
    checkpoint_wal_bytes: int = 64 * MIB
    checkpoint_interval_ms: int = 60_000
    stage_ttl_ms: int = 3_600_000
    reset_wal: bool = False
    group_read: bool = False
    api_keys_given: bool = False
    """Whether there are API keys. The keys themselves are never in the settings, so that no output can show them."""
    allow_insecure_no_auth: bool = False
    probe_auth: bool = False
    connections_max: int = 20_000
    header_timeout_ms: int = 60_000
    body_timeout_ms: int = 60_000
    keepalive_timeout_ms: int = 75_000
    test_min_heartbeat_ms: int = 1000
    log_level: str = "info"
    log_format: Literal["text", "json"] = "text"
    access_log: bool = False
    slow_request_ms: int = 1000
    short_writes: bool = True
    limits: Limits = Limits()
    broker: BrokerSettings = BrokerSettings()


_PARTS: dict[str, Struct] = {_LIMITS: Limits(), _BROKER: BrokerSettings()}
"""Settings of one area are in a struct of their own."""


class Option(NamedTuple):
    """One setting with its external name and its help."""

    group: str
    field: str
    """The field in `Settings`, such as `port` or `limits.topics_max`."""
    help: str
    least: int = 0
    most: int | None = None
    named: str = ""
    """The external name, if it is not derived from the field."""
    also: str = ""
    """Another name in the environment."""
    choices: tuple[str, ...] = ()
    """The accepted words, if there are only a few."""

    @property
    def name(self) -> str:
        """Return the external name: `routers_max` becomes `max_routers`, other names are those of the fields."""
        field = self.field.rpartition(".")[2]
        return self.named or (f"max_{field.removesuffix('_max')}" if field.endswith("_max") else field)

    @property
    def variable(self) -> str:
        """Return the name of the environment variable."""
        return _PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        """Return the name on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def default(self) -> Value | None:
        """Return the value that applies if none is given."""
        part, dot, field = self.field.rpartition(".")
        found: Value | None = getattr(_PARTS.get(part + dot, Settings()), field)
        return found

    @property
    def type(self) -> type[Value]:
        """Return the type of the values."""
        default = self.default
        return str if default is None else type(default)


_LISTEN, _STORE, _SAFETY, _CAPS, _BROKERS, _REST = (
    "Listening",
    "Storage",
    "Access",
    "Limits",
    "Broker (/v1)",
    "Other",
)

LOG_LEVELS = ("debug", "info", "warning", "warn", "error")
_FAILS = ("open", "closed")
_DURABILITIES = ("fsync", "disk", "ephemeral")

OPTIONS: tuple[Option, ...] = (
    Option(_LISTEN, "host", "Address to listen on; `host:port` sets the port too."),
    Option(_LISTEN, "port", "Port to listen on; 0 chooses a free one.", most=_PORT_MAX),
    Option(_LISTEN, "port_file", "File to write the address to, as `host:port`, once the server listens."),
    Option(_LISTEN, "connections_max", "Maximum open connections; 0: no limit."),
    Option(_LISTEN, "header_timeout_ms", "Time limit for the head of a request."),
    Option(_LISTEN, "body_timeout_ms", "Time limit for each 64 KiB of a request's body."),
    Option(_LISTEN, "keepalive_timeout_ms", "Time after which an idle connection is closed."),
    Option(_STORE, "data_dir", "Directory of WAL, checkpoints and hot segments; created if missing."),
    Option(_STORE, "cold_dir", "Directory of cold segments; without it, segments stay in the data directory."),
    Option(
        _STORE,
        "backup_dir",
        "Directory for backups; without it, the server makes none.",
    ),
    Option(_STORE, "wal_shards", "Number of WAL writers, each with its own process and files.", least=1),
    Option(
        _STORE,
        "disk_reserve_bytes",
        "Size of a file that is deleted when a checkpoint has no room, so that a full disk can be emptied; 0: none.",
    ),
    Option(_STORE, "wal_file_bytes", "Size of one WAL file.", least=4096, most=WAL_FILE_BYTES_MAX),
    Option(
        _STORE,
        "wal_stop_grace_ms",
        "How long reads still work after the log has stopped; then the server exits with code 8.",
    ),
    Option(
        _STORE,
        "writer_hang_limit_ms",
        "If a log writer hangs this long, the server exits with code 9; a segment writer is killed.",
        least=1000,
    ),
    Option(_STORE, "segment_max_events", "Seal a segment at this many records.", least=1),
    Option(_STORE, "segment_max_bytes", "Seal a segment at this many bytes; 0: never."),
    Option(_STORE, "segment_max_age_ms", "Seal a segment at this age; 0: never."),
    Option(_STORE, "hot_retain_segments", "Number of newest sealed segments per topic that stay hot."),
    Option(_STORE, "hot_retain_bytes", "Bytes of sealed segments per topic that stay hot; 0: no limit."),
    Option(_STORE, "cache_bytes", "Bytes of payloads kept in memory."),
    Option(_STORE, "checkpoint_wal_bytes", "Take a checkpoint after this many bytes of WAL.", least=1),
    Option(_STORE, "checkpoint_interval_ms", "Take a checkpoint at least this often while there are writes."),
    Option(_STORE, "stage_ttl_ms", "How long a staged write waits for its commit."),
    Option(
        _STORE,
        "group_read",
        "Let the group of the server's user read new files, for readers in place; without it, only the owner can.",
    ),
    Option(_STORE, "reset_wal", "Start empty; existing data is renamed to `.bak.<seconds>`, never deleted."),
    Option(
        _SAFETY, "allow_insecure_no_auth", "Listen on an address that other machines can reach, even without API keys."
    ),
    Option(_SAFETY, "probe_auth", "Require an API key for health and readiness too."),
    Option(_CAPS, "limits.batch_records_max", "Maximum records in one write."),
    Option(_CAPS, "limits.record_bytes_max", "Maximum bytes of one record."),
    Option(_CAPS, "limits.body_bytes_max", "Maximum bytes of a request's body."),
    Option(_CAPS, "limits.meta_bytes_max", "Maximum bytes of a record's meta."),
    Option(_CAPS, "limits.tag_bytes_max", "Maximum bytes of a tag."),
    Option(_CAPS, "limits.node_bytes_max", "Maximum bytes of a node."),
    Option(_CAPS, "limits.page_records_max", "Maximum records in one answer.", least=1, named="max_limit"),
    Option(_CAPS, "limits.watch_topics_max", "Maximum topics in one watch."),
    Option(_CAPS, "limits.claim_max", "Maximum records in one claim, ack, nack or extend.", least=1),
    Option(_CAPS, "limits.topics_max", "Maximum topics; 0: no limit."),
    Option(_CAPS, "limits.total_bytes_max", "Maximum live bytes of all topics; 0: no limit."),
    Option(_CAPS, "limits.routers_max", "Maximum routers; 0: no limit."),
    Option(_CAPS, "limits.watch_sessions_max", "Maximum watch sessions; 0: no limit."),
    Option(_CAPS, "limits.sse_connections_max", "Maximum open streams; 0: no limit."),
    Option(_CAPS, "limits.sse_connections_per_key_max", "Maximum open streams per API key; 0: no limit."),
    Option(_CAPS, "limits.inflight_per_key_max", "Maximum open requests per API key; 0: no limit."),
    Option(_BROKERS, "broker.dev_limits", "Use small limits, to see their effect; each can still be set."),
    Option(_BROKERS, "broker.in_flight_max", "Maximum unfinished deliveries per group and partition.", 1),
    Option(_BROKERS, "broker.stream_credit", "Maximum unfinished messages per stream; 0: no limit."),
    Option(_BROKERS, "broker.partition_msgs_max", "Maximum unfinished messages per partition; 0: no limit."),
    Option(_BROKERS, "broker.partition_bytes_max", "Maximum bytes of unfinished messages per partition; 0: no limit."),
    Option(_BROKERS, "broker.default_lease_ms", "Lease of a message if the consumer does not set one.", 1),
    Option(_BROKERS, "broker.lease_ms_max", "Longest lease; a request for more gets this.", 1),
    Option(_BROKERS, "broker.redelivery_tick_ms", "How often the server looks for expired leases.", 1),
    Option(_BROKERS, "broker.idem_ttl_ms", "How long a producer's idempotency key is remembered."),
    Option(_BROKERS, "broker.idem_consume_ttl_ms", "How long a consumer's idempotency key is remembered; 0: for ever."),
    Option(_BROKERS, "broker.retry_after_ms", "Retry delay that a refused producer gets."),
    Option(_BROKERS, "broker.heartbeat_ms", "Send an empty line on a stream after this much silence; 0: never."),
    Option(
        _BROKERS, "broker.nack_guard_ms", "First delay of a message without a retry policy that is nacked repeatedly."
    ),
    Option(
        _BROKERS,
        "broker.nack_guard_max_ms",
        "Longest delay of a message without a retry policy that is nacked repeatedly.",
    ),
    Option(
        _BROKERS,
        "broker.group_idle_ms",
        "A group without streams for this long no longer limits producers; 0: it always does.",
    ),
    Option(_BROKERS, "broker.message_bytes_max", "Maximum bytes of a message's key and value."),
    Option(_BROKERS, "broker.partitions_max", "Maximum partitions per topic.", 1),
    Option(_BROKERS, "broker.error_bytes_max", "Maximum bytes of a message's last error.", 4),
    Option(_BROKERS, "broker.stream_stall_ms", "Close a stream whose client reads nothing for this long.", 1),
    Option(_BROKERS, "broker.router", "Router hook that may redirect messages, as module:attribute."),
    Option(_BROKERS, "broker.router_url", "Router hook as a webhook URL."),
    Option(_BROKERS, "broker.router_timeout_ms", "Time limit for the router hook.", 1),
    Option(
        _BROKERS,
        "broker.router_fail",
        "If the router hook fails: open, continue without it; closed, refuse the message.",
        choices=_FAILS,
    ),
    Option(
        _BROKERS,
        "broker.v1_retention_ms",
        "Remove messages older than this once every group has finished them; 0: keep them for ever.",
    ),
    Option(_BROKERS, "broker.accept_labels", "Accept labels in an envelope."),
    Option(_BROKERS, "broker.durability", "What a produce and an ack wait for.", choices=_DURABILITIES),
    Option(_BROKERS, "broker.run_index_entries", "Number of newest steps of runs that can be looked up."),
    Option(_REST, "log_level", "Lowest level that is logged.", also="LOG", choices=LOG_LEVELS),
    Option(_REST, "log_format", "Format of log lines: text, or JSON objects.", choices=("text", "json")),
    Option(_REST, "access_log", "Log every request; a single write then takes the server three times as long."),
    Option(_REST, "slow_request_ms", "Log requests that take longer than this; 0: none."),
    Option(
        _REST,
        "short_writes",
        "Use the short path for ordinary writes; without it, the answers are the same, but slower.",
    ),
    Option(_REST, "test_min_heartbeat_ms", "Lower the minimum heartbeat interval of a watch, for tests."),
)
"""All settings except the API keys, which are read only from DRIFTQ_API_KEYS: other users can see a command line."""


def read_settings(environment: Mapping[str, str], flags: Mapping[str, Value] | None = None) -> Settings:
    """Return the settings from flags (by field) and environment. Raises StartError."""
    told = {option.field: value for option in OPTIONS if (value := _told(option, environment)) is not None}
    values = _with_port_of_host(told) | _with_port_of_host(dict(flags or {}))
    if values.get(f"{_BROKER}dev_limits"):
        for field, value in DEV_LIMITS.items():
            values.setdefault(_BROKER + field, value)
    plain: dict[str, object] = {field: value for field, value in values.items() if "." not in field}
    for part in _PARTS:
        told_part = {field.removeprefix(part): value for field, value in values.items() if field.startswith(part)}
        plain[part.removesuffix(".")] = told_part
    plain["api_keys_given"] = any(key.strip() for key in environment.get(f"{_PREFIX}API_KEYS", "").split(","))
    return convert(plain, Settings)


def _told(option: Option, environment: Mapping[str, str]) -> Value | None:
    """Return the value of a setting in the environment, or None if it is absent or invalid. Raises StartError."""
    names = (option.variable, _PREFIX + option.also) if option.also else (option.variable,)
    name = next((name for name in names if environment.get(name)), None)
    if name is None:
        return None
    text = environment[name]
    if option.choices:
        return _chosen(option, name, text)
    if option.type is str:
        return text
    if option.type is bool:
        return text.lower() in ("1", "true")
    try:
        value = int(text)
    except ValueError:
        value = -1
    if option.least <= value and (option.most is None or value <= option.most):
        return value
    if option.field == "port":
        raise StartError(f"{option.variable} is {text!r}; a port is a number from 0 to {_PORT_MAX}")
    if option.most is not None and value > option.most:
        raise StartError(f"{option.variable} is {text}; the limit is {option.most}")
    return None


def _chosen(option: Option, name: str, text: str) -> str:
    word = text.lower()
    if word not in option.choices:
        raise StartError(f"{name} is {text!r}; the accepted values are {', '.join(option.choices)}")
    return word


def _with_port_of_host(values: dict[str, Value]) -> dict[str, Value]:
    """Split `host:port` and `[host]:port` into two settings. A host with several colons is an IPv6 address."""
    host = values.get("host")
    if not isinstance(host, str):
        return values
    name, colon, port = host.rpartition(":") if host.count(":") == 1 or "]:" in host else (host, "", "")
    if colon:
        if not (port.isdecimal() and int(port) <= _PORT_MAX):
            raise StartError(f"the host is {host!r}; a port is a number from 0 to {_PORT_MAX}")
        values["port"] = int(port)
    values["host"] = name.removeprefix("[").removesuffix("]") or Settings().host
    return values
