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
    Option(_LISTEN, "host", "Address to listen on; `host:port` gives the port too."),
    Option(_LISTEN, "port", "Port to listen on; 0 takes a free one.", most=_PORT_MAX),
    Option(_LISTEN, "port_file", "File that gets the address as `host:port` once the server listens."),
    Option(_LISTEN, "connections_max", "Connections at one time; 0: no limit."),
    Option(_LISTEN, "header_timeout_ms", "How long the head of a request may take."),
    Option(_LISTEN, "body_timeout_ms", "How long the next 64 KiB of a request's body may take."),
    Option(_LISTEN, "keepalive_timeout_ms", "How long a connection may be idle."),
    Option(_STORE, "data_dir", "Directory of WAL, checkpoints and hot segments; made if absent."),
    Option(_STORE, "cold_dir", "Directory of cold segments; without it nothing is moved."),
    Option(_STORE, "backup_dir", "Directory that backups go to; without it any, where only this machine can ask."),
    Option(_STORE, "wal_shards", "WAL writers, each with its thread and files.", least=1),
    Option(
        _STORE,
        "disk_reserve_bytes",
        "Size of a file that is removed when a checkpoint has no room, so that a full disk can be emptied; 0: none.",
    ),
    Option(_STORE, "wal_file_bytes", "Size of a WAL file.", least=4096, most=WAL_FILE_BYTES_MAX),
    Option(
        _STORE,
        "wal_stop_grace_ms",
        "How long reads are still answered after the log has stopped; then the server exits with code 8.",
    ),
    Option(
        _STORE,
        "writer_hang_limit_ms",
        "A log writer that hangs for so long makes the server exit with code 9; a writer of segments is killed.",
        least=1000,
    ),
    Option(_STORE, "segment_max_events", "A segment is sealed at so many records.", least=1),
    Option(_STORE, "segment_max_bytes", "A segment is sealed at so many bytes; 0: never."),
    Option(_STORE, "segment_max_age_ms", "A segment is sealed at this age; 0: never."),
    Option(_STORE, "hot_retain_segments", "Newest sealed segments of a topic that stay hot."),
    Option(_STORE, "hot_retain_bytes", "Bytes of sealed segments of a topic that stay hot; 0: as many as there are."),
    Option(_STORE, "cache_bytes", "Payloads kept in memory."),
    Option(_STORE, "checkpoint_wal_bytes", "A checkpoint is taken after so much WAL.", least=1),
    Option(_STORE, "checkpoint_interval_ms", "A checkpoint is taken at least this often while something is written."),
    Option(_STORE, "stage_ttl_ms", "How long a staged write waits for its commit."),
    Option(_STORE, "reset_wal", "Begin with nothing; what there is is renamed to `.bak.<seconds>`, never deleted."),
    Option(_SAFETY, "allow_insecure_no_auth", "Listen on an address others can reach although there are no keys."),
    Option(_SAFETY, "probe_auth", "Ask for a key on health and readiness too."),
    Option(_CAPS, "limits.batch_records_max", "Records in one write."),
    Option(_CAPS, "limits.record_bytes_max", "Bytes of one record."),
    Option(_CAPS, "limits.body_bytes_max", "Bytes of a request's body."),
    Option(_CAPS, "limits.meta_bytes_max", "Bytes of a record's meta."),
    Option(_CAPS, "limits.tag_bytes_max", "Bytes of a tag."),
    Option(_CAPS, "limits.node_bytes_max", "Bytes of a node."),
    Option(_CAPS, "limits.page_records_max", "Records in one answer.", least=1, named="max_limit"),
    Option(_CAPS, "limits.watch_topics_max", "Topics of one watch."),
    Option(_CAPS, "limits.claim_max", "Records of one claim, ack, nack or extend.", least=1),
    Option(_CAPS, "limits.topics_max", "Topics; 0: no limit."),
    Option(_CAPS, "limits.total_bytes_max", "Live bytes of all topics; 0: no limit."),
    Option(_CAPS, "limits.routers_max", "Routers; 0: no limit."),
    Option(_CAPS, "limits.watch_sessions_max", "Watch sessions; 0: no limit."),
    Option(_CAPS, "limits.sse_connections_max", "Streams at one time; 0: no limit."),
    Option(_CAPS, "limits.sse_connections_per_key_max", "Streams of one key at one time; 0: no limit."),
    Option(_CAPS, "limits.inflight_per_key_max", "Requests of one key at one time; 0: no limit."),
    Option(_BROKERS, "broker.dev_limits", "Small limits, to see them at work; any of them can be set beside it."),
    Option(_BROKERS, "broker.in_flight_max", "Messages of a group and partition that are delivered and not done.", 1),
    Option(_BROKERS, "broker.stream_credit", "Messages that one stream holds; 0: no limit."),
    Option(_BROKERS, "broker.partition_msgs_max", "Messages of a partition that are not done; 0: no limit."),
    Option(_BROKERS, "broker.partition_bytes_max", "Bytes of messages of a partition not done; 0: no limit."),
    Option(_BROKERS, "broker.default_lease_ms", "How long a message is held by who did not say.", 1),
    Option(_BROKERS, "broker.lease_ms_max", "The longest a message is held; who asks for more gets this.", 1),
    Option(_BROKERS, "broker.redelivery_tick_ms", "How often it is looked for leases that are over.", 1),
    Option(_BROKERS, "broker.idem_ttl_ms", "How long a producer's idempotency key is remembered."),
    Option(_BROKERS, "broker.idem_consume_ttl_ms", "How long a consumer's one is; 0: for ever."),
    Option(_BROKERS, "broker.retry_after_ms", "When a producer that was refused is told to come again."),
    Option(_BROKERS, "broker.heartbeat_ms", "An empty line goes out on a stream after so much silence; 0: never."),
    Option(_BROKERS, "broker.nack_guard_ms", "First pause of a message without policy that is nacked again and again."),
    Option(_BROKERS, "broker.nack_guard_max_ms", "Its longest pause."),
    Option(_BROKERS, "broker.group_idle_ms", "A group gone so long holds up no producer; 0: it always does."),
    Option(_BROKERS, "broker.message_bytes_max", "Bytes of a message's key and value."),
    Option(_BROKERS, "broker.partitions_max", "Partitions of one topic.", 1),
    Option(_BROKERS, "broker.error_bytes_max", "Bytes of a message's last error.", 4),
    Option(_BROKERS, "broker.stream_stall_ms", "A stream that takes nothing for so long is ended.", 1),
    Option(_BROKERS, "broker.router", "Hook that may send messages elsewhere, as module:attribute."),
    Option(_BROKERS, "broker.router_url", "The same as a webhook."),
    Option(_BROKERS, "broker.router_timeout_ms", "How long the hook may take.", 1),
    Option(_BROKERS, "broker.router_fail", "Without its answer: open, go on; closed, refuse.", choices=_FAILS),
    Option(
        _BROKERS,
        "broker.v1_retention_ms",
        "Messages older than this go once every group has them done; 0: they are kept for ever.",
    ),
    Option(_BROKERS, "broker.accept_labels", "Take labels in an envelope."),
    Option(_BROKERS, "broker.durability", "What a produce and an ack wait for.", choices=_DURABILITIES),
    Option(_BROKERS, "broker.run_index_entries", "Newest steps of runs that can be looked up."),
    Option(_REST, "log_level", "The least level that is logged.", also="LOG", choices=LOG_LEVELS),
    Option(_REST, "log_format", "Lines of the log: text, or JSON objects.", choices=("text", "json")),
    Option(_REST, "access_log", "Log every request; a single write then costs the server three times as much."),
    Option(_REST, "slow_request_ms", "Log requests that take longer than this; 0: none."),
    Option(_REST, "short_writes", "Ordinary writes take the short path; without it they get the same answers, slower."),
    Option(_REST, "test_min_heartbeat_ms", "Lowers the floor of a watch's heartbeat, for tests."),
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
        raise StartError(f"{option.variable} is {text!r}, and a port is a number from 0 to {_PORT_MAX}")
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
            raise StartError(f"the host is {host!r}, and a port is a number from 0 to {_PORT_MAX}")
        values["port"] = int(port)
    values["host"] = name.removeprefix("[").removesuffix("]") or Settings().host
    return values
