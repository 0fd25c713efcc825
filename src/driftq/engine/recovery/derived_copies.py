"""How a topic gets copies of another one's records, live and in replay, without the engine knowing who copies.

Copies are not logged. Live, whoever makes them keeps a topic fresh for its readers (`Upstream`). In replay they are
made again (`Deriver`): the frames that a topic does have say where its head was when they were made, and the seqs
between them belong to copies.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from driftq.engine.files.segment_files import Filing
from driftq.engine.state.catalog import Catalog
from driftq.engine.state.topic import Topic
from driftq.system.runtime import Pending


class Upstream(Protocol):
    """Whoever makes copies, live."""

    def bring(self, topic: Topic) -> Pending[None] | None:
        """Copy what is due into a topic. None when nothing is, or when it is done; never fails for want of room."""
        ...


class Deriver(Protocol):
    """Whoever makes them again."""

    @property
    def kinds(self) -> frozenset[int]:
        """The kinds of its own frames."""
        ...

    def attach(self, catalog: Catalog, filing: Filing) -> None:
        """Before anything is restored."""
        ...

    def derives(self, topic: Topic, head: int | None = None) -> bool:
        """Has this topic copies that a replay makes again, at or below a seq where one is given?"""
        ...

    def needs(self, kind: int, body: bytes) -> int:
        """Where the head of its topic was when a frame of its own was made; 0 when that does not matter."""
        ...

    def knows(self, kind: int, body: bytes) -> bool:
        """Is what a frame names there, if it is one of its own?"""
        ...

    def derive(self, topic: Topic, head: int, ts: int, *, reach: Callable[[Topic], bool]) -> None:
        """Copy until the head is there, or as far as it goes. `reach`: may a topic further up be filled for it?"""
        ...

    def forget_unlogged(self, topic: Topic, head: int) -> None:
        """Records of an `ephemeral` topic up to this seq are in no log: nobody misses them after a restart."""
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
