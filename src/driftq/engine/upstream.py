"""How a topic that is copied into is brought up to date before a read, without the engine knowing who copies."""

from typing import Protocol

from driftq.engine.topic import Topic
from driftq.seam.runtime import Pending


class Upstream(Protocol):
    """Whoever makes copies."""

    def bring(self, topic: Topic) -> Pending[None] | None:
        """Copy what is due into a topic. None when nothing is, or when it is done; never fails for want of room."""
        ...
