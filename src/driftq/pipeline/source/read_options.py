"""Parses and checks the options of a read, so that errors appear when the DataFrame is made, not when it runs.

Spark passes names in lower case. Unknown names are refused: if a misspelt option were ignored, the query would read the
wrong records.
"""

import json
import os
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from difflib import get_close_matches
from typing import NamedTuple

from driftq.model.names import BROKER_MARK, broker_topic, is_broker_topic
from driftq.pipeline.errors import PipelineError
from driftq.pipeline.server_connection import PATIENCE_S
from driftq.pipeline.source import kafka_options

DEFAULT_SERVER = "http://127.0.0.1:4000"
SPLIT_RECORDS = 400_000
BATCH_BYTES = 256 << 20
"""Bytes of records in one micro-batch if the options set no limit."""
_TRIGGER_DELAY = "15m"
_READ = (
    *("server", "apiKey", "topic", "topics", "topicPattern", "api", "startingSeq", "startingTimestamp", "endingSeq"),
    *("endingTimestamp", "tag", "tagPrefix", "node", "withGaps", "splitRecords", "maxRecordsPerTrigger"),
    *("maxBytesPerTrigger", "onDataLoss", "allowEmpty", "schema", "dataType"),
)
# Options of the sink and of Spark: a table made with SQL has one set of options for both directions.
_OTHER = (
    *("errorTopic", "writer", "batch", "createTopic", "retryTimeoutMs"),
    *("checkpointLocation", "path", "queryName"),
)
_KNOWN = {name.lower(): name for name in (*_READ, *_OTHER, *kafka_options.NAMES)}
_STORED = ("option.", "owner", "provider")
"""Prefixes of names that only tables in a catalog have: a copy of their options, and properties of their own."""
_LOSS = ("fail", "rows", "skip")
_WORDS = ("earliest", "latest")
_LAST_MS = (1 << 63) - 1
_BOOLEANS = {"true": True, "false": False}

Starts = str | dict[str, int | str]
"""`earliest`, `latest`, or one of them or the first wanted seq by topic; `*` is for topics that are not named."""


class ReadOptions(NamedTuple):
    """The options of a read, parsed and checked."""

    server: str
    topics: tuple[str, ...]
    """Names of topics in `/v0`. Empty if there is a pattern."""
    pattern: str | None
    start: Starts
    start_ts: dict[str, int]
    """Time by topic from which to read, in Unix ms; `*` is for all topics. Empty if the options set no time."""
    end: Starts
    end_ts: int | None
    tag: str | None
    tag_prefix: str | None
    node: str | None
    with_gaps: bool
    with_v1: bool
    """Whether the columns of the broker API are included."""
    with_headers: bool
    split_records: int
    min_partitions: int | None
    max_records: int | None
    max_offsets: int | None
    max_bytes: int | None
    min_offsets: int | None
    trigger_delay_s: float
    on_data_loss: str
    allow_empty: bool
    """Whether a pattern may match no topic."""
    late_start_fails: bool
    """Whether a topic without a record at `start_ts` or later is an error, as it is in Kafka."""
    schema: str | None
    """DDL of the columns that `data` is parsed into."""
    as_variant: bool
    """Whether `data` is a VARIANT."""
    cursor: str
    """Name of the cursor that shows the position of the query; empty for the default."""

    @property
    def not_before(self) -> int | None:
        """The time (Unix ms) before which no record is wanted, however late it comes."""
        return self.start_ts.get("*")


def parse(options: Mapping[str, str], *, server: str | None = None) -> ReadOptions:
    """Return the parsed options; `server` is the session's server. Raises PipelineError."""
    given = {name.lower(): value for name, value in options.items()}
    check_names(given)
    given = kafka_options.translated(given)
    v1 = _api(given)
    topics, pattern = _topics(given, v1=v1)
    with_gaps = _flag(given, "withGaps")
    loss = given.get("ondataloss", "rows" if with_gaps else "fail").lower()
    if loss not in _LOSS:
        raise PipelineError(f"onDataLoss is {loss!r} and must be fail, rows or skip")
    for name in ("startingSeq", "endingSeq"):
        if name.lower() in given and f"{name[:-3]}Timestamp".lower() in given:
            raise PipelineError(f"give {name} or {name[:-3]}Timestamp, not both")
    records, offsets, size = (_count(given, f"max{what}PerTrigger") for what in ("Records", "Offsets", "Bytes"))
    start, end = _place(given, "startingSeq", "earliest"), _place(given, "endingSeq", "latest")
    return ReadOptions(
        server=server_of(given, server),
        topics=topics,
        pattern=pattern,
        start=_of_topics(start, "startingSeq", topics, pattern, v1=v1),
        start_ts=_start_times(given, topics, pattern, v1=v1),
        end=_of_topics(end, "endingSeq", topics, pattern, v1=v1),
        end_ts=_time(given, "endingTimestamp"),
        tag=given.get("tag"),
        tag_prefix=given.get("tagprefix"),
        node=given.get("node"),
        with_gaps=with_gaps or loss == "rows",
        with_v1=v1 or any(map(is_broker_topic, topics)) or BROKER_MARK in (pattern or ""),
        split_records=_count(given, "splitRecords") or SPLIT_RECORDS,
        with_headers=_flag(given, "includeHeaders"),
        min_partitions=_count(given, "minPartitions"),
        max_records=records,
        max_offsets=offsets,
        max_bytes=size or (None if records or offsets else BATCH_BYTES),
        min_offsets=_count(given, "minOffsetsPerTrigger"),
        trigger_delay_s=kafka_options.seconds("maxTriggerDelay", given.get("maxtriggerdelay", _TRIGGER_DELAY)),
        on_data_loss=loss,
        allow_empty=_flag(given, "allowEmpty"),
        late_start_fails=_late_start_fails(given),
        schema=given.get("schema", "").strip() or None,
        as_variant=_as_variant(given),
        cursor=given.get("kafka.group.id", "").strip(),
    )


def server_of(options: Mapping[str, str], session_server: str | None) -> str:
    """Return the server: of the option, else of the session, else of the environment, else the default."""
    return options.get("server") or session_server or os.environ.get("DRIFTQ_URL") or DEFAULT_SERVER


def api_key_of(options: Mapping[str, str], session_key: str | None) -> str | None:
    """Return the API key of the option, session or environment, in this order, without surrounding white space."""
    given = {name.lower(): value for name, value in options.items()}
    return (given.get("apikey") or session_key or os.environ.get("DRIFTQ_API_KEY") or "").strip() or None


def patience_of(options: Mapping[str, str]) -> float:
    """Return how many seconds a write waits for a server that is down. Raises PipelineError."""
    given = {name.lower(): value for name, value in options.items()}
    return (_count(given, "retryTimeoutMs") or PATIENCE_S * 1000) / 1000


def check_names(options: Mapping[str, str]) -> None:
    """Raise PipelineError if there is an unknown option."""
    for name in map(str.lower, options):
        if name.startswith(_STORED):
            raise PipelineError("Spark does not pass the options of a table to its reader: use CREATE TEMPORARY VIEW")
        if name in kafka_options.INSTEAD:
            raise PipelineError(f"there is no option {name!r}: {kafka_options.INSTEAD[name]}")
        if name not in _KNOWN:
            near = get_close_matches(name, _KNOWN, 1, 0.75)
            hint = f"did you mean {_KNOWN[near[0]]}?" if near else f"the options are {', '.join(_READ)}"
            raise PipelineError(f"there is no option {name!r}: {hint}")


def check_stream(options: Mapping[str, str]) -> None:
    """Raise PipelineError if a stream has an option that only a table can have."""
    for name in map(str.lower, options):
        if name in ("endingseq", "endingtimestamp", "endingoffsets"):
            raise PipelineError(
                f"{_KNOWN[name]} is only for tables: a stream ends when it is stopped, or with availableNow"
            )


def _api(given: Mapping[str, str]) -> bool:
    api = given.get("api", "v0").lower()
    if api not in ("v0", "v1"):
        raise PipelineError(f"api is {api!r} and must be v0 or v1")
    return api == "v1"


def _topics(given: Mapping[str, str], *, v1: bool) -> tuple[tuple[str, ...], str | None]:
    """Return topics or a pattern from exactly one of the three options that name topics."""
    named = [name for name in ("topic", "topics", "topicPattern") if given.get(name.lower())]
    if len(named) != 1:
        raise PipelineError(
            "give exactly one of the options topic, topics (comma-separated), topicPattern, subscribe "
            "(comma-separated) and subscribePattern"
        )
    value = given[named[0].lower()]
    if named == ["topicPattern"]:
        pattern = f"{BROKER_MARK}(?:{value})" if v1 and not is_broker_topic(value) else value
        try:
            re.compile(pattern)
        except re.error as error:
            raise PipelineError(f"topicPattern {value!r} is not a regular expression: {error}") from None
        return (), pattern
    names = [value] if named == ["topic"] else [name for name in map(str.strip, value.split(",")) if name]
    if not names:
        raise PipelineError("option topics is empty: name at least one topic")
    return tuple(dict.fromkeys(_stored_name(name, v1=v1) for name in names)), None


def _place(given: Mapping[str, str], name: str, default: str) -> Starts:
    """Parse `earliest`, `latest`, a seq, or a JSON map of topic to seq."""
    text = given.get(name.lower(), default).strip()
    if text.lower() in _WORDS:
        return text.lower()
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if _is_seq(value):
        return {"*": value}
    if isinstance(value, dict) and value and all(seq in _WORDS or _is_seq(seq) for seq in value.values()):
        return value
    raise PipelineError(f'{name} is {text!r} and must be earliest, latest, a seq, or a JSON map like {{"orders": 17}}')


def _start_times(given: Mapping[str, str], topics: tuple[str, ...], pattern: str | None, *, v1: bool) -> dict[str, int]:
    """Return the times to start from: of `startingTimestamp` for all topics, else those of Kafka's option by topic."""
    everywhere, by_topic = _time(given, "startingTimestamp"), given.get("startingoffsetsbytimestamp")
    if everywhere is not None or by_topic is None:
        return {} if everywhere is None else {"*": everywhere}
    name = "startingOffsetsByTimestamp"
    times = _of_topics(dict(kafka_options.of_topics(name, by_topic)), name, topics, pattern, v1=v1)
    assert isinstance(times, dict)
    missing = next((topic for topic in topics if topic not in times), None)
    if missing is not None:
        raise PipelineError(f"{name} does not name topic {missing!r}, which this query reads")
    return {topic: int(ts) for topic, ts in times.items()}


def _as_variant(given: Mapping[str, str]) -> bool:
    kind = given.get("datatype", "string").lower()
    if kind not in ("string", "variant"):
        raise PipelineError(f"dataType is {kind!r} and must be string or variant")
    if kind == "variant" and given.get("schema", "").strip():
        raise PipelineError("give schema or dataType=variant, not both: a column of schema can be VARIANT")
    return kind == "variant"


def _late_start_fails(given: Mapping[str, str]) -> bool:
    """Whether the query fails if no record of a topic is as late as `startingOffsetsByTimestamp` asks."""
    strategy = given.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise PipelineError(f"startingOffsetsByTimestampStrategy is {strategy!r} and must be error or latest")
    return strategy == "error" and "startingtimestamp" not in given


def _of_topics(places: Starts, name: str, topics: tuple[str, ...], pattern: str | None, *, v1: bool) -> Starts:
    """Replace topic names by their names in `/v0`. Raises PipelineError if a topic is not part of the read."""
    if isinstance(places, str):
        return places
    found: dict[str, int | str] = {}
    for topic, seq in places.items():
        known = topic if topic == "*" else _stored_name(topic, v1=v1)
        if known != "*" and (known not in topics if pattern is None else not re.fullmatch(pattern, known)):
            raise PipelineError(f"{name} names topic {topic!r}, which this query does not read")
        found[known] = seq
    return found


def _stored_name(name: str, *, v1: bool) -> str:
    """Return the name of a topic in `/v0`. With option api=v1, the broker's own name is accepted, too."""
    return broker_topic(name) if v1 and not is_broker_topic(name) else name


def _is_seq(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _time(given: Mapping[str, str], name: str) -> int | None:
    """Parse Unix milliseconds or ISO 8601. A time without a zone is UTC."""
    text = given.get(name.lower())
    if text is None:
        return None
    if text.strip().isdigit():
        return min(int(text), _LAST_MS)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise PipelineError(
            f"{name} is {text!r} and must be milliseconds or a time like 2026-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)  # noqa: UP017  # older Pythons, to which it is pickled, lack UTC
    return max(0, round(moment.timestamp() * 1000))


def _flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name.lower(), "false").lower()
    if text not in _BOOLEANS:
        raise PipelineError(f"{name} is {text!r} and must be true or false")
    return _BOOLEANS[text]


def _count(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdigit() or not int(text):
        raise PipelineError(f"{name} is {text!r} and must be a number above 0")
    return int(text)
