"""How a topic gets copies of another one's records, live and in replay, without the engine knowing who copies.

Copies are not logged. Live, whoever makes them keeps a topic fresh for its readers (`Upstream`). In replay they are
made again (`Deriver`): the frames that a topic does have say where its head was when they were made, and the seqs
between them belong to copies.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from driftq.engine.catalog import Catalog
from driftq.engine.filing import Filing
from driftq.engine.topic import Topic
from driftq.seam.runtime import Pending


class Upstream(Protocol):
    """Whoever makes copies, live."""

    def bring(self, topic: Topic) -> Pending[None] | None:
        """Copy what is due into a topic. None when nothing is, or when it is done; never fails for want of room."""
        ...


class Deriver(Protocol):
    """Whoever makes them again."""

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

    def order(self) -> Sequence[Topic]:
        """Topics with copies, each behind those it is copied from."""
        ...

    def finish(self, topic: Topic, now: int) -> None:
        """The log is at its end: copy what is left, as far as there is room."""
        ...

    def raised(self, topic: Topic, before: int) -> None:
        """Behind that, the head of a topic was raised to its reservation; before, it was here."""
        ...
