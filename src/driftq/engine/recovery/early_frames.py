"""Frames that replay met too early: with several shards, before those that their topic's copies are made from.

A topic that has one has all its later frames here, so that they stay in order. They are applied when every file has
been read: a topic's frames as far as they go, then another's. When none goes further, the first frame of one topic is
applied as it is: what it waits for is lost. That is a topic which gets copies from no other topic that has frames here,
because those frames may be what the others wait for.
"""

from collections.abc import Callable, Iterator, Sequence

from driftq.storage.blocks.frame import Frame, Kind, control_body

Try = Callable[[bytes, Frame, bool], bool]
"""Apply a frame, if it can be or must; says whether it was."""


class Deferred:
    """The frames that wait, by topic."""

    def __init__(self) -> None:
        self.open = False
        """May frames wait? Only while there may be others behind that they wait for."""
        self.topics: dict[int, list[tuple[bytes, Frame]]] = {}

    def begin(self, buffer: bytes, frame: Frame) -> None:
        """From this frame on those of its topic wait."""
        assert frame.topic_id not in self.topics
        self.topics[frame.topic_id] = [_cut(buffer, frame)]

    def add(self, buffer: bytes, frame: Frame) -> bool:
        """Wait behind the others of its topic; False when none does."""
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
        """Apply all of them. `order` returns the ids of topics, each after those that it is copied from.

        A topic that is not among them is copied from none.
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
        """The frames of a topic, as far as they go. Returns whether any did."""
        frames = self.topics.pop(topic_id)
        done = 0
        while done < len(frames) and attempt(*frames[done], force and not done):
            done += 1
        if done < len(frames):
            self.topics[topic_id] = frames[done:]
        return done > 0


def _cut(buffer: bytes, frame: Frame) -> tuple[bytes, Frame]:
    """The frame without its file."""
    return buffer[frame.start : frame.end], frame._replace(start=0, end=frame.end - frame.start)
