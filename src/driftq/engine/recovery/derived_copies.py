"""How a topic gets router copies of another topic's records, live and in replay, without the engine knowing routers.

Copies are not logged. Live, a `TopicCopier` keeps a topic fresh for its readers. In replay, a `Deriver` makes the
copies again: the logged frames of a topic show where its head was when they were made, and the seqs between them belong
to copies.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from driftq.engine.files.segment_files import SegmentFiles
from driftq.engine.state.catalog import Catalog
from driftq.engine.state.topic import Topic
from driftq.system.runtime import Pending


class TopicCopier(Protocol):
    """Makes copies while the server runs."""

    def bring(self, topic: Topic) -> Pending[None] | None:
        """Copy what is due into a topic. Returns None if there is nothing to wait for; lack of room is not an error."""
        ...


class Deriver(Protocol):
    """Makes copies again during replay."""

    @property
    def kinds(self) -> frozenset[int]:
        """Return the frame kinds that belong to it."""
        ...

    def attach(self, catalog: Catalog, segment_files: SegmentFiles) -> None:
        """Connect it to the engine's parts, before anything is restored."""
        ...

    def derives(self, topic: Topic, head: int | None = None) -> bool:
        """Whether replay must make copies in this topic again (up to `head`, if given)."""
        ...

    def needs(self, kind: int, body: bytes) -> int:
        """Return the head of the topic at which one of its own frames was made; 0 when that does not matter."""
        ...

    def knows(self, kind: int, body: bytes) -> bool:
        """Whether everything that a frame refers to exists; True for frames that are not its own."""
        ...

    def derive(self, topic: Topic, head: int, ts: int, *, reach: Callable[[Topic], bool]) -> None:
        """Copy until the topic has this head, or as far as possible. `reach`: whether a source may be filled too."""
        ...

    def forget_unlogged(self, topic: Topic, head: int) -> None:
        """Move routers past records of an `ephemeral` topic up to `head`, because no log has them."""
        ...

    def feeds(self, kind: int, body: bytes) -> int | None:
        """Return the id of the topic that a frame lets its own topic be copied into; None for any other frame."""
        ...

    def order(self, feeds: Sequence[tuple[int, int]] = ()) -> Sequence[Topic]:
        """Return the topics with copies and their sources, each after those that it is copied from.

        `feeds` are more pairs of source and dest, by id, of routers that are not known yet.
        """
        ...

    def finish(self, topic: Topic, now: int, settle: Callable[[Topic], None]) -> None:
        """Copy what is left at the end of the log, as far as there is room.

        `settle` raises the head to the seqs that readers may have seen. Copies at seqs that readers saw come before
        that, all others after it.
        """
        ...
