"""Whether a topic with `discard: reject` has room for a write (http-v0 §4.4).

Writes in flight count as if they were stored, so that concurrent writes cannot exceed a cap together.
"""

from typing import Protocol

from driftq.engine.state.topic import Topic
from driftq.errors import RecordTooLargeError, TopicFullError
from driftq.model.topic_config import Discard, TopicConfig


class TopicLoad(Protocol):
    """A write whose size is checked against the caps."""

    @property
    def count(self) -> int:
        """Return the number of records."""
        ...

    @property
    def payload_bytes(self) -> int:
        """Return the payload bytes of the records, as the contract counts them."""
        ...


def check_size(config: TopicConfig, load: TopicLoad) -> None:
    """Raise RecordTooLargeError if a write exceeds a cap of a rejecting topic even when the topic is empty."""
    if config.discard is Discard.REJECT and (
        _over(load.count, config.cap_records) or _over(load.payload_bytes, config.cap_bytes)
    ):
        raise RecordTooLargeError(
            f"the write has {load.count} records and {load.payload_bytes} bytes; the topic's caps are"
            f" {config.cap_records} records and {config.cap_bytes} bytes (0 = no cap)",
            detail={"bytes": load.payload_bytes, "max": config.cap_bytes or config.cap_records},
        )


def check_caps(topic: Topic, load: TopicLoad) -> None:
    """Raise TopicFullError if a write does not fit into a rejecting topic now, RecordTooLargeError if it never will."""
    config = topic.config
    check_size(config, load)
    if config.discard is Discard.REJECT:
        records = topic.count + topic.in_flight.records + load.count
        payload = topic.payload + topic.in_flight.payload + load.payload_bytes
        if _over(records, config.cap_records) or _over(payload, config.cap_bytes):
            raise TopicFullError(
                f"topic {topic.name!r} is full",
                detail={
                    "topic": topic.name,
                    "cap_records": config.cap_records,
                    "cap_bytes": config.cap_bytes,
                    "head_seq": topic.head,
                    "earliest_seq": topic.earliest,
                },
            )


def _over(amount: int, cap: int) -> bool:
    return cap > 0 and amount > cap
