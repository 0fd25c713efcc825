"""How later features bring their own frame kinds and checkpoint sections without the engine knowing them.

A feature registers one `DurableState`. From then on
- a frame of one of its `kinds` is handed to `apply`, live when it is committed and again in replay: once per state, for
  the engine skips what a checkpoint already shows, by the topic's `op`;
- `capture` is asked in the same loop turn as all topics, so that the sections of a checkpoint are one moment;
- `restore` gets back what `capture` gave, before any frame is replayed;
- `forget` hears that a topic is gone, live and in replay.
"""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from driftq.engine.state.topic import Topic


@runtime_checkable
class NamesTopics(Protocol):
    """A feature that decides what its topics are called, whatever name the log has for them."""

    def name_topics(self, topics: Mapping[int, Topic]) -> None:
        """Give each topic of this feature its name, before recovery looks for two topics of one name."""
        ...


class DurableState(Protocol):
    """State that must survive a restart."""

    name: str
    """The section of the checkpoint; never changes."""

    kinds: frozenset[int]
    """The frame kinds it owns."""

    def apply(self, kind: int, topic: Topic, ts: int, body: bytes) -> None:
        """One committed frame."""
        ...

    def capture(self) -> bytes:
        """All state, as bytes."""
        ...

    def restore(self, section: bytes) -> None:
        """The state of a checkpoint."""
        ...

    def forget(self, topic: Topic) -> None:
        """The topic is deleted, and everything that names it with it."""
        ...
