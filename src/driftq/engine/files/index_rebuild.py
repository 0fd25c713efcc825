"""Rebuilds `.tags` and `.idx` files that a crash lost, in the background, so that a clean stop leaves every file whole.

Neither file is needed for an answer: recovery builds a missing index from the data, and so does a search for tags
(`engine/read/tag_lookup`). No sync protects `.tags`, so a power loss may lose or tear it; a process that is killed
loses nothing that it had written.

    waiting → being checked → intact, or rebuilt          one segment at a time, on the file thread

A segment that is dropped or moved to the cold tier meanwhile is skipped. One with a block that cannot be read is left
as it is: the code that reads the block reports the problem. A stop waits for the rest, as for all file work.
"""

from collections import deque
from collections.abc import Iterable
from functools import partial

from driftq.engine.files.segment_files import SegmentFiles
from driftq.engine.state.segment import MOVE, SEALED, Segment
from driftq.engine.state.topic import Topic
from driftq.storage.segments.hot_store import SegmentStore


class Mending:
    """The segments that are still to be checked."""

    def __init__(
        self, segment_files: SegmentFiles, store: SegmentStore, segments: Iterable[tuple[Topic, Segment]]
    ) -> None:
        self._segment_files = segment_files
        self._store = store
        self._waiting = deque(segments)

    def go_on(self) -> None:
        """Check one segment in the background and rebuild its files if needed; then continue with the next."""
        while self._waiting:
            topic, segment = self._waiting.popleft()
            if segment.state is SEALED and MOVE not in segment.work:
                work = partial(self._mend, topic, segment)
                self._segment_files.unpinned(partial(self._segment_files.in_background, work, self.go_on))
                return

    def _mend(self, topic: Topic, segment: Segment) -> None:
        """Rebuild the files of one segment, on the file thread. After a failure the next start tries again."""
        if segment.state is SEALED:
            self._store.mend(topic.id, segment.first_seq, segment.index)
