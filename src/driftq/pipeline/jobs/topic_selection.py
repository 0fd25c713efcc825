"""Selects the topics that a job reads, by names and patterns, and returns them as options of the source.

A pattern has `*` (any text), `?` (one character) or `[…]` (one of these), as in a shell: `orders`, `@runs.*`.
"""

import re
from collections.abc import Sequence
from fnmatch import translate
from hashlib import sha256

from driftq.client import Client, NotFoundError
from driftq.pipeline.errors import AbsentError, PipelineError


def exists(client: Client, topic: str) -> bool:
    """Whether the server has a topic of this name."""
    try:
        client.topic(topic).info(touch=False)
    except NotFoundError:
        return False
    return True


def epoch_of(client: Client, topic: str) -> int:
    """Return the epoch of the current topic of this name. Raises AbsentError if there is none."""
    try:
        return client.topic(topic).segments().epoch
    except NotFoundError as absent:
        raise AbsentError(f"there is no topic {topic!r}; `driftq topic ls` lists all topics") from absent


_WILD = re.compile(r"[*?\[]")


def is_pattern(topic: str) -> bool:
    """Whether the text is a pattern, not the name of one topic."""
    return _WILD.search(topic) is not None


def source_options(topics: Sequence[str], without: Sequence[str] = ()) -> dict[str, str]:
    """Return `topics` or `topicPattern` for the source.

    `without` are the topics that the job writes to. A job must not read its own output: a pattern leaves these topics
    out. Raises PipelineError if one of them is named, or if there is no topic.
    """
    wanted = [topic.strip() for topic in topics if topic.strip()]
    if not wanted:
        raise PipelineError("no topic is given; use --topics NAME,… or a pattern such as --topics 'orders.*'")
    named = next((topic for topic in wanted if topic in without), None)
    if named is not None:
        raise PipelineError(f"the job would read and write topic {named!r}, and never end; leave it out of --topics")
    if not any(map(is_pattern, wanted)):
        return {"topics": ",".join(wanted)}
    pattern = pattern_of(wanted)
    if without:
        pattern = rf"(?!(?:{'|'.join(map(re.escape, without))})\Z)(?:{pattern})"
    return {"topicPattern": pattern}


def pattern_of(topics: Sequence[str]) -> str:
    """Return one regular expression for topics and patterns."""
    return "|".join(translate(topic) if is_pattern(topic) else re.escape(topic) for topic in topics)


def selection_key(*parts: object) -> str:
    """Return a short name for a selection of topics and its destination. Equal selections have equal names."""
    return sha256(repr(parts).encode()).hexdigest()[:12]
