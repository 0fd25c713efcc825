"""Settings from environment and flags: every setting of the contract, under its name, with its default."""

import pytest
from msgspec import structs

from driftq.config import OPTIONS, Option, Settings, Value, read_settings
from driftq.errors import StartError
from driftq.model.broker_settings import BrokerSettings
from driftq.model.limits import Limits

MIB = 1 << 20

# http-v0 §3, §16, §18: what clients and operators rely on, written out once more.
CONTRACT: dict[str, Value | None] = {
    "HOST": "127.0.0.1",
    "PORT": 4000,
    "PORT_FILE": None,
    "ALLOW_INSECURE_NO_AUTH": False,
    "PROBE_AUTH": False,
    "DATA_DIR": "./driftq-data",
    "COLD_DIR": None,
    "WAL_SHARDS": 1,
    "SEGMENT_MAX_EVENTS": 10_000,
    "SEGMENT_MAX_BYTES": 64 * MIB,
    "SEGMENT_MAX_AGE_MS": 3_600_000,
    "HOT_RETAIN_SEGMENTS": 4,
    "HOT_RETAIN_BYTES": 0,
    "LOG_LEVEL": "info",
    "CACHE_BYTES": 256 * MIB,
    "STAGE_TTL_MS": 3_600_000,
    "MAX_CONNECTIONS": 20_000,
    "HEADER_TIMEOUT_MS": 60_000,
    "BODY_TIMEOUT_MS": 60_000,
    "KEEPALIVE_TIMEOUT_MS": 75_000,
    "MAX_BATCH_RECORDS": 10_000,
    "MAX_RECORD_BYTES": MIB,
    "MAX_BODY_BYTES": 64 * MIB,
    "MAX_META_BYTES": 16 << 10,
    "MAX_TAG_BYTES": 256,
    "MAX_NODE_BYTES": 128,
    "MAX_LIMIT": 1000,
    "MAX_WATCH_TOPICS": 256,
    "MAX_CLAIM": 1000,
    "MAX_TOPICS": 100_000,
    "MAX_ROUTERS": 10_000,
    "MAX_WATCH_SESSIONS": 10_000,
    "MAX_SSE_CONNECTIONS": 10_000,
    "MAX_SSE_CONNECTIONS_PER_KEY": 1000,
    "MAX_INFLIGHT_PER_KEY": 1000,
    "MAX_TOTAL_BYTES": 0,
    # http-v1 §16
    "DEV_LIMITS": False,
    "MAX_IN_FLIGHT": 64,
    "STREAM_CREDIT": 8,
    "MAX_PARTITION_MSGS": 100_000,
    "MAX_PARTITION_BYTES": 64 * MIB,
    "DEFAULT_LEASE_MS": 2000,
    "REDELIVERY_TICK_MS": 250,
    "IDEM_TTL_MS": 600_000,
    "IDEM_CONSUME_TTL_MS": 600_000,
    "RETRY_AFTER_MS": 1000,
    "MAX_LEASE_MS": 43_200_000,
    "HEARTBEAT_MS": 20_000,
    "NACK_GUARD_MS": 100,
    "NACK_GUARD_MAX_MS": 5000,
    "GROUP_IDLE_MS": 3_600_000,
    "MAX_MESSAGE_BYTES": MIB,
    "MAX_PARTITIONS": 1024,
    "MAX_ERROR_BYTES": 4096,
    "STREAM_STALL_MS": 30_000,
    "ROUTER": None,
    "ROUTER_URL": None,
    "ROUTER_TIMEOUT_MS": 2000,
    "ROUTER_FAIL": "open",
    "V1_RETENTION_MS": 0,
    "ACCEPT_LABELS": False,
    "DURABILITY": "fsync",
    "RUN_INDEX_ENTRIES": 100_000,
    "RESET_WAL": False,
    "LOG_FORMAT": "text",
    "ACCESS_LOG": False,
    "SLOW_REQUEST_MS": 1000,
}

BY_VARIABLE = {option.variable: option for option in OPTIONS}
NUMBERS = [option for option in OPTIONS if option.type is int]


def value_of(settings: Settings, option: Option) -> Value | None:
    part, _, field = option.field.rpartition(".")
    found: Value | None = getattr(getattr(settings, part) if part else settings, field)
    return found


def test_every_setting_of_the_contract_is_there_with_its_default() -> None:
    assert {name: BY_VARIABLE[f"DRIFTQ_{name}"].default for name in CONTRACT} == CONTRACT


def test_every_setting_has_an_option_and_every_option_a_setting() -> None:
    fields = {field.name for field in structs.fields(Settings)} - {"limits", "broker", "api_keys_given"}
    fields |= {f"limits.{field.name}" for field in structs.fields(Limits)}
    fields |= {f"broker.{field.name}" for field in structs.fields(BrokerSettings)}
    assert sorted(option.field for option in OPTIONS) == sorted(fields)
    assert len(BY_VARIABLE) == len(OPTIONS) == len({option.flag for option in OPTIONS})


def test_nothing_said_is_the_default() -> None:
    assert read_settings({}) == Settings()
    assert read_settings({option.variable: "" for option in OPTIONS}) == Settings()


@pytest.mark.parametrize("option", NUMBERS, ids=lambda option: option.name)
def test_a_number_is_taken_from_the_environment_and_a_flag_wins(option: Option) -> None:
    assert value_of(read_settings({option.variable: "5000"}), option) == 5000
    assert value_of(read_settings({option.variable: "5000"}, {option.field: 6000}), option) == 6000
    assert value_of(read_settings({}, {option.field: 6000}), option) == 6000
    assert value_of(read_settings({option.variable: str(option.least)}), option) == option.least


@pytest.mark.parametrize("option", [one for one in NUMBERS if one.field != "port"], ids=lambda option: option.name)
def test_a_number_that_cannot_be_understood_is_the_default(option: Option) -> None:
    for text in ("many", "1.5", "-1", "0x10", "9" * 5000, str(option.least - 1)):
        assert value_of(read_settings({option.variable: text}), option) == option.default


@pytest.mark.parametrize(
    "option", [one for one in OPTIONS if one.type is str and not one.choices], ids=lambda option: option.name
)
def test_a_text_is_taken_as_it_is(option: Option) -> None:
    assert value_of(read_settings({option.variable: "some where"}), option) == "some where"
    assert value_of(read_settings({option.variable: "some"}, {option.field: "else"}), option) == "else"


@pytest.mark.parametrize(
    ("text", "wanted"), [("1", True), ("true", True), ("TRUE", True), ("0", False), ("yes", False)]
)
def test_a_switch_is_on_with_1_and_true_alone(text: str, wanted: bool) -> None:
    settings = read_settings({"DRIFTQ_ALLOW_INSECURE_NO_AUTH": text, "DRIFTQ_PROBE_AUTH": text})
    assert (settings.allow_insecure_no_auth, settings.probe_auth) == (wanted, wanted)
    assert not read_settings({"DRIFTQ_PROBE_AUTH": text}, {"probe_auth": False}).probe_auth


@pytest.mark.parametrize(
    ("variables", "flags", "wanted"),
    [
        ({"HOST": "h:5"}, {}, ("h", 5)),
        ({"HOST": "h:5", "PORT": "6"}, {}, ("h", 5)),
        ({"HOST": "h:5"}, {"port": 7}, ("h", 7)),
        ({"HOST": "h", "PORT": "6"}, {"host": "g:8"}, ("g", 8)),
        ({"HOST": "h:5"}, {"host": "g"}, ("g", 5)),
        ({"HOST": "::1"}, {}, ("::1", 4000)),
        ({"HOST": "[::1]"}, {}, ("::1", 4000)),
        ({"HOST": "[::1]:9"}, {}, ("::1", 9)),
        ({"HOST": ":9"}, {}, ("127.0.0.1", 9)),
    ],
)
def test_host_and_port(variables: dict[str, str], flags: dict[str, Value], wanted: tuple[str, int]) -> None:
    settings = read_settings({f"DRIFTQ_{name}": value for name, value in variables.items()}, flags)
    assert (settings.host, settings.port) == wanted


@pytest.mark.parametrize("environment", [{"DRIFTQ_PORT": "x"}, {"DRIFTQ_PORT": "65536"}, {"DRIFTQ_HOST": "h:x"}])
def test_a_port_that_is_none_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(StartError, match="a port is a number"):
        read_settings(environment)


def test_a_wal_file_is_at_most_2_gib() -> None:
    """A place in the log has 32 bits for the offset in its file."""
    assert read_settings({"DRIFTQ_WAL_FILE_BYTES": str(2 << 30)}).wal_file_bytes == 2 << 30
    with pytest.raises(StartError, match="DRIFTQ_WAL_FILE_BYTES is 5000000000; the limit is 2147483648"):
        read_settings({"DRIFTQ_WAL_FILE_BYTES": "5000000000"})


def test_the_log_level_has_two_names() -> None:
    assert read_settings({"DRIFTQ_LOG": "debug"}).log_level == "debug"
    assert read_settings({"DRIFTQ_LOG": "debug", "DRIFTQ_LOG_LEVEL": "error"}).log_level == "error"


@pytest.mark.parametrize(("text", "given"), [("k", True), ("a:r,b", True), (" , ,", False), ("", False)])
def test_of_the_keys_only_that_there_are_some_is_kept(text: str, given: bool) -> None:
    settings = read_settings({"DRIFTQ_API_KEYS": text})
    assert settings.api_keys_given is given
    assert "a:r" not in repr(settings)


class TestDevLimits:
    def test_they_lie_between_the_default_and_what_is_said(self) -> None:
        environment = {"DRIFTQ_DEV_LIMITS": "1", "DRIFTQ_MAX_IN_FLIGHT": "5"}
        broker = read_settings(environment, {"broker.stream_credit": 3}).broker
        assert (broker.in_flight_max, broker.stream_credit, broker.partition_msgs_max) == (5, 3, 2)

    def test_without_them_the_limits_are_those_for_work(self) -> None:
        assert read_settings({}).broker == BrokerSettings()


@pytest.mark.parametrize("option", [one for one in OPTIONS if one.choices], ids=lambda option: option.name)
def test_a_word_of_the_environment_that_is_not_a_choice_is_refused_with_the_accepted_values(option: Option) -> None:
    for word in option.choices:
        assert value_of(read_settings({option.variable: word.upper()}), option) == word
    names = [option.variable, f"DRIFTQ_{option.also}"] if option.also else [option.variable]
    for name in names:
        with pytest.raises(StartError) as refused:
            read_settings({name: "loud"})
        assert str(refused.value) == f"{name} is 'loud'; the accepted values are {', '.join(option.choices)}"
    assert value_of(read_settings({option.variable: ""}), option) == option.default
