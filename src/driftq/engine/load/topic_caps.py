"""Whether a topic that rejects has room (http-v0 §4.4).

What is under way counts as if it were there, so that writes which race cannot overrun a cap together.
"""

from typing import Protocol

from driftq.engine.state.topic import Topic
from driftq.errors import RecordTooLargeError, TopicFullError
from driftq.model.topic_config import Discard, TopicConfig


class TopicLoad(Protocol):
    """What asks for room."""

    @property
    def count(self) -> int:
        """Records."""
        ...

    @property
    def payload_bytes(self) -> int:
        """Their bytes, as the contract counts them."""
        ...


def check_size(config: TopicConfig, load: TopicLoad) -> None:
    """A write larger than a whole rejecting topic will never fit."""
    if config.discard is Discard.REJECT and (
        _over(load.count, config.cap_records) or _over(load.payload_bytes, config.cap_bytes)
    ):
        raise RecordTooLargeError(
            "this write is larger than the whole topic may be",
            detail={"bytes": load.payload_bytes, "max": config.cap_bytes or config.cap_records},
        )


def check_caps(topic: Topic, load: TopicLoad) -> None:
    """A rejecting topic takes what fits, and no more."""
    config = topic.config
    check_size(config, load)
    if config.discard is Discard.REJECT:
        records = topic.count + topic.inflight_records + load.count
        payload = topic.payload + topic.inflight_payload + load.payload_bytes
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
