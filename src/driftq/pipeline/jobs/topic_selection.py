"""Which topics a job reads: names and patterns, as options of the source.

A pattern has `*` (any text), `?` (one character) or `[…]` (one of these), as in a shell: `orders`, `@runs.*`.
"""

import re
from collections.abc import Sequence
from fnmatch import translate
from hashlib import sha256

from driftq.client import Client, NotFoundError
from driftq.pipeline.errors import AbsentError, PipelineError


def exists(client: Client, topic: str) -> bool:
    """Is there such a topic?"""
    try:
        client.topic(topic).info(touch=False)
    except NotFoundError:
        return False
    return True


def epoch_of(client: Client, topic: str) -> int:
    """Which one of those that had this name it is. Raises AbsentError where there is none."""
    try:
        return client.topic(topic).segments().epoch
    except NotFoundError as absent:
        raise AbsentError(f"there is no topic {topic!r}; `driftq topic ls` lists those there are") from absent


_WILD = re.compile(r"[*?\[]")


def is_pattern(topic: str) -> bool:
    """Does it stand for more than the topic of that name?"""
    return _WILD.search(topic) is not None


def source_options(topics: Sequence[str], without: Sequence[str] = ()) -> dict[str, str]:
    """`topics` or `topicPattern` of the source.

    `without` are those that the job writes to, and it must not feed itself: a pattern leaves them out, and one that is
    named is refused. Raises PipelineError.
    """
    wanted = [topic.strip() for topic in topics if topic.strip()]
    if not wanted:
        raise PipelineError("no topic is named; say --topics NAME,… or a pattern such as --topics 'orders.*'")
    named = next((topic for topic in wanted if topic in without), None)
    if named is not None:
        raise PipelineError(f"topic {named!r} is read and written by the same job, which would never end; leave it out")
    if not any(map(is_pattern, wanted)):
        return {"topics": ",".join(wanted)}
    pattern = pattern_of(wanted)
    if without:
        pattern = rf"(?!(?:{'|'.join(map(re.escape, without))})\Z)(?:{pattern})"
    return {"topicPattern": pattern}


def pattern_of(topics: Sequence[str]) -> str:
    """A regular expression for topics and patterns."""
    return "|".join(translate(topic) if is_pattern(topic) else re.escape(topic) for topic in topics)


def selection_key(*parts: object) -> str:
    """A short name for a choice of topics and where they go: the same choice has the same."""
    return sha256(repr(parts).encode()).hexdigest()[:12]
