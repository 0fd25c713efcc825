"""Records that were acked when queued and whose frame a failed write then lost.

They are in memory and readers see them, but no part of the log has them: a crash now would lose them. A checkpoint
captures them like all others, so the risk ends with the first durable checkpoint that was captured after the failure.

    acked when queued → its write fails: lost → captured → checkpoint durable: not lost any more

Invariants
- `synced_seq` of a topic stays below `lost_from` while that is set (`engine/state/in_flight`).
- In a `disk` topic that routers copy into, a mark in the log reserves the seqs of such records. No copy and no frame
  comes before the mark (`features/router/copy_marks`).
- A capture covers the seqs up to the topic's head at that moment. Seqs above it that are lost later stay lost.
"""

from collections.abc import Callable

from driftq.engine.state.topic import Topic


class Losses:
    """The topics with acked records whose frame was lost."""

    def __init__(self) -> None:
        self._topics: set[Topic] = set()
        self.on_covered: Callable[[Topic], None] | None = None
        """Called when a durable checkpoint has the lost records of a topic, or some of them."""

    def __bool__(self) -> bool:
        return bool(self._topics)

    def note(self, topic: Topic, first: int, last: int) -> None:
        """Note that a frame was not written whose records were acked when it was queued."""
        flight = topic.in_flight
        flight.lost_from = first if flight.lost_from is None else min(first, flight.lost_from)
        flight.lost_to = max(last, flight.lost_to)
        self._topics.add(topic)

    def captured(self) -> dict[Topic, int]:
        """Return the head of every topic with lost records, in the turn in which a checkpoint captures them."""
        self._topics = {topic for topic in self._topics if not topic.gone}
        return {topic: topic.head for topic in self._topics}

    def covered(self, captured: dict[Topic, int]) -> None:
        """End the losses that a checkpoint covers, now that it is durable."""
        for topic, head in captured.items():
            if topic.in_flight.lost_to <= head:
                topic.in_flight.lost_from = None
                self._topics.discard(topic)
            else:
                topic.in_flight.lost_from = head + 1
            if self.on_covered is not None and not topic.gone:
                self.on_covered(topic)
