"""The options of Spark's Kafka source, with Kafka's meaning, in terms of ours.

A DriftQ topic is like a Kafka topic with one partition, number 0; a seq is an offset. Starts are inclusive, ends are
exclusive, and offsets that have no record count, as in Kafka. Names are in lower case here.
"""

import json
from collections.abc import Callable, Mapping

from driftq.pipeline.errors import PipelineError

NAMES = (
    *("subscribe", "subscribePattern", "startingOffsets", "endingOffsets", "startingOffsetsByTimestamp"),
    *("startingOffsetsByTimestampStrategy", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("minPartitions", "failOnDataLoss", "includeHeaders", "kafka.group.id"),
)
INSTEAD = {
    "kafka.bootstrap.servers": "name the server with option server, as in server=http://127.0.0.1:4000",
    "assign": "a topic has one partition here; use subscribe",
}
"""What to do without options of Kafka that have no meaning here."""
_WORDS = {-2: "earliest", -1: "latest"}
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


def translated(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options with those of Kafka replaced by ours, where there is one. Raises PipelineError."""
    found = dict(given)
    _move(found, "subscribe", "topics", str)
    _move(found, "subscribePattern", "topicPattern", str)
    if "startingoffsetsbytimestamp" in found:
        found.pop("startingoffsets", None)  # as in Kafka, the time wins
    _move(found, "startingOffsets", "startingSeq", _starts)
    _move(found, "endingOffsets", "endingSeq", _ends)
    _move(found, "failOnDataLoss", "onDataLoss", _loss)
    return found


def _move(found: dict[str, str], kafka: str, ours: str, change: Callable[[str], str]) -> None:
    if kafka.lower() not in found:
        return
    if ours.lower() in found:
        raise PipelineError(f"options {kafka} and {ours} mean the same: give one of them")
    found[ours.lower()] = change(found.pop(kafka.lower()))


def _starts(text: str) -> str:
    if text.strip().lower() in ("earliest", "latest"):
        return text
    offsets = of_topics("startingOffsets", text, least=-2)
    return json.dumps({topic: _WORDS.get(offset, offset) for topic, offset in offsets.items()})


def _ends(text: str) -> str:
    if text.strip().lower() == "latest":
        return text
    offsets = of_topics("endingOffsets", text, least=-1)
    return json.dumps({topic: _WORDS.get(offset, max(0, offset - 1)) for topic, offset in offsets.items()})


def _loss(text: str) -> str:
    if text.strip().lower() not in ("true", "false"):
        raise PipelineError(f"failOnDataLoss is {text!r} and must be true or false")
    return "fail" if text.strip().lower() == "true" else "skip"


def of_topics(name: str, text: str, *, least: int = 0) -> dict[str, int]:
    """Return the number of each topic in JSON of the form `{"orders": {"0": 23}}`. Raises PipelineError."""
    try:
        value = json.loads(text)
        found = {topic: partitions["0"] for topic, partitions in value.items() if set(partitions) == {"0"}}
    except (ValueError, AttributeError, TypeError, KeyError):
        value, found = None, {}
    numbers = all(isinstance(each, int) and not isinstance(each, bool) and each >= least for each in found.values())
    if not value or len(found) != len(value) or not numbers:
        raise PipelineError(
            f'{name} is {text!r} and must be JSON like {{"orders": {{"0": 23}}}}: a topic has the one partition 0, and '
            f"numbers are from {least} on"
        )
    return found


def seconds(name: str, text: str) -> float:
    """Return a duration as Spark writes it: `500ms`, `30s`, `15m`, `1h`. Raises PipelineError."""
    number = text.strip().lower().rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text.strip().lower()[len(number) :]
    if not number.isdecimal() or unit not in _UNITS:
        raise PipelineError(f"{name} is {text!r} and must be a time like 30s, 15m or 1h")
    return int(number) * _UNITS[unit]
