"""How features bring their own frame kinds and checkpoint sections without the engine knowing them.

A feature registers one `DurableState`. From then on
- the engine passes each frame of one of its `kinds` to `apply`, live when it is committed and again in replay. In
  replay the engine skips frames that the checkpoint already contains, by the topic's `op`;
- the engine calls `capture` in the same loop turn in which it captures all topics, so that all sections of a checkpoint
  show one moment;
- the engine calls `restore` with the bytes of `capture` before it replays any frame;
- the engine calls `forget` when a topic is deleted, live and in replay.
"""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from driftq.engine.state.topic import Topic


@runtime_checkable
class NamesTopics(Protocol):
    """A feature that decides the names of its topics, whatever names the log has for them."""

    def name_topics(self, topics: Mapping[int, Topic]) -> None:
        """Give each topic of this feature its name, before recovery searches for topics with equal names."""
        ...


class DurableState(Protocol):
    """The state of one feature that must survive a restart."""

    name: str
    """The name of its section in the checkpoint; must never change."""

    kinds: frozenset[int]
    """The frame kinds that belong to this feature."""

    def apply(self, kind: int, topic: Topic, ts: int, body: bytes) -> None:
        """Change the state by one committed frame."""
        ...

    def capture(self) -> bytes:
        """Return the whole state as bytes for a checkpoint."""
        ...

    def restore(self, section: bytes) -> None:
        """Replace the state by that of a checkpoint."""
        ...

    def forget(self, topic: Topic) -> None:
        """Remove everything that refers to a deleted topic."""
        ...
