"""What jobs ask about a topic before they work on it."""

from driftq.client import Client, NotFoundError
from driftq.pipeline.errors import AbsentError


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
