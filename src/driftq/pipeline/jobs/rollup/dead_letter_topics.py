"""Finds the topics that hold the dead letters of other topics, which a count of errors must include."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from driftq.client import NotFoundError
from driftq.model.names import BROKER_MARK, broker_topic, is_broker_topic
from driftq.pipeline.errors import AbsentError
from driftq.pipeline.jobs.topic_selection import is_pattern, pattern_of, source_options

if TYPE_CHECKING:
    from driftq.client import Client

_LETTERS = broker_topic("dlq.")


def with_letters(client: "Client", topics: Sequence[str]) -> dict[str, str]:
    """Return options of the source for these topics and patterns, and for their dead-letter topics.

    A dead-letter topic is read as soon as it exists; a topic that is named must exist. Raises AbsentError.
    """
    options = source_options(topics)
    wanted = [topic.strip() for topic in topics if topic.strip()]
    named = [topic for topic in wanted if not is_pattern(topic)]
    letters = [f"{_LETTERS}{one.removeprefix(BROKER_MARK)}" for one in wanted if _is_broker(one)]
    letters += [letter for topic in named if (letter := _dead_letter(client, topic)) is not None]
    more = [letter for letter in dict.fromkeys(letters) if letter not in wanted]
    if not more:
        return options
    return {"topicPattern": pattern_of([*wanted, *more])}


def _is_broker(topic: str) -> bool:
    return is_broker_topic(topic) and not topic.startswith(_LETTERS)


def _dead_letter(client: "Client", topic: str) -> str | None:
    """Return the topic that gets the dead letters of a queue, or None. Raises AbsentError."""
    try:
        return client.topic(topic).info(touch=False).config.dead_letter
    except NotFoundError as absent:
        raise AbsentError(f"there is no topic {topic!r}; `driftq topic ls` lists all topics") from absent
