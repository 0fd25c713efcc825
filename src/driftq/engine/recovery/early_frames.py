"""Frames that replay read too early: with several shards, before those that their topic's copies are made from.

If a topic has such a frame, all its later frames wait here too, so that they stay in order. They are applied when every
file has been read: the frames of one topic as far as possible, then those of another. When no topic can continue, the
first frame of one topic is applied as it is, because what it waits for is lost. That topic is chosen so that it gets
copies from no other topic that has frames here, because those frames may be what the others wait for.
"""

from collections.abc import Callable, Iterator, Sequence

from driftq.storage.blocks.frame import Frame, Kind, control_body

Try = Callable[[bytes, Frame, bool], bool]
"""Applies a frame if possible, or if forced; returns whether it did."""


class Deferred:
    """The frames that wait, by topic."""

    def __init__(self) -> None:
        self.open = False
        """Whether frames may wait: only while the frames that they wait for may still be read."""
        self.topics: dict[int, list[tuple[bytes, Frame]]] = {}

    def begin(self, buffer: bytes, frame: Frame) -> None:
        """Let this frame wait, and so all later frames of its topic."""
        assert frame.topic_id not in self.topics
        self.topics[frame.topic_id] = [_cut(buffer, frame)]

    def add(self, buffer: bytes, frame: Frame) -> bool:
        """Queue a frame after the waiting ones of its topic; returns False when none waits."""
        waiting = self.topics.get(frame.topic_id)
        if waiting is None:
            return False
        waiting.append(_cut(buffer, frame))
        return True

    def controls(self) -> Iterator[tuple[Frame, bytes]]:
        """Yield every control frame that waits, and its body."""
        for waiting in self.topics.values():
            for buffer, frame in waiting:
                if frame.kind != Kind.APPEND:
                    yield frame, control_body(buffer, frame)

    def apply(self, order: Callable[[], Sequence[int]], attempt: Try) -> None:
        """Apply all waiting frames. `order` returns the ids of topics, each after those that it is copied from.

        A topic that is not in the result of `order` has no copies.
        """
        while self.topics:
            moved = False
            for topic_id in sorted(self.topics):
                moved = self._apply_some(topic_id, attempt, force=False) or moved
            if not moved:
                known = order()
                ordered = [*sorted(self.topics.keys() - set(known)), *known]
                first = next(topic_id for topic_id in ordered if topic_id in self.topics)
                self._apply_some(first, attempt, force=True)

    def _apply_some(self, topic_id: int, attempt: Try, *, force: bool) -> bool:
        """Apply the frames of a topic as far as possible. Returns whether any was applied."""
        frames = self.topics.pop(topic_id)
        done = 0
        while done < len(frames) and attempt(*frames[done], force and not done):
            done += 1
        if done < len(frames):
            self.topics[topic_id] = frames[done:]
        return done > 0


def _cut(buffer: bytes, frame: Frame) -> tuple[bytes, Frame]:
    """Return the frame with its own bytes, without the rest of the file."""
    return buffer[frame.start : frame.end], frame._replace(start=0, end=frame.end - frame.start)
