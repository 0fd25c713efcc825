"""Subscriptions of one topic that ask the same of it: woken together, and told together where they stand together.

Those who have read a topic to its end stand at one place, and what one of them is told next all are told, byte by byte.
So the first is served as ever, and the others are handed what it said (`Feed.follow`). Who stands elsewhere or does not
read is marked, and has a turn of its own. So has at once who follows other topics too: a feed says what its topics have
in the order of their names, whichever of them is served first.

Invariants
- Whoever was a member when the topic changed is served or marked, once for all changes before its turn.
- What is handed on was read in the same step: nothing has happened to the topic in between.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from driftq.engine.engine import Engine
from driftq.engine.state.topic import Topic
from driftq.features.watch.position import Options
from driftq.features.watch.turns import Turns

_TOGETHER_MAX = 32
"""So many are served in one step; the others wait for the next, as everybody does."""


class Lead(NamedTuple):
    """What became of one who was served, for all who stood where it stood."""

    stood: object
    """All that its words depended on, beside the topic."""
    cursor: int
    epoch: int
    head: int
    topic: Topic
    said: bytes


class SharedReader(Protocol):
    """One subscription."""

    @property
    def alone(self) -> bool:
        """Is it the only one of its feed?"""
        ...

    def lead(self) -> tuple[int, Lead | None]:
        """Be served now, or marked. Says what it cost, and what came of it if that holds for others too."""
        ...

    def follow(self, lead: Lead) -> bool:
        """Be told the same, if it stands where that one stood."""
        ...

    def wake(self) -> None:
        """Be marked."""
        ...


class Chorus:
    """All who follow one topic in one way."""

    def __init__(self, ask: "Callable[[Chorus], None]") -> None:
        self._ask = ask
        self._asked = False
        self.members: dict[SharedReader, None] = {}
        self._left: deque[SharedReader] = deque()
        self._waiting: set[SharedReader] = set()
        """Who is in it. They keep their place: else a topic that changes all the time is told to the first alone."""

    def wake(self) -> None:
        """Something may have happened to the topic."""
        for member in self.members:
            if not member.alone:
                member.wake()
            elif member not in self._waiting:
                self._waiting.add(member)
                self._left.append(member)
        if self._left:
            self._ask_once()

    def step(self) -> int:
        """Serve some of those who are left."""
        self._asked = False
        lead: Lead | None = None
        spent = cost = 0
        for _ in range(min(len(self._left), _TOGETHER_MAX)):
            member = self._left.popleft()
            self._waiting.discard(member)
            if member not in self.members:
                continue
            if lead is None:
                cost, lead = member.lead()
                spent += cost
            elif member.follow(lead):
                spent += cost
            else:
                member.wake()
        if self._left:
            self._ask_once()
        return spent

    def _ask_once(self) -> None:
        if not self._asked:
            self._asked = True
            self._ask(self)


class Choruses:
    """All of them, by topic and options; one that has lost its last member is gone."""

    def __init__(self, engine: Engine, turns: Turns, priority: Callable[[Topic], int]) -> None:
        self._engine = engine
        self._turns = turns
        self._priority = priority
        self._all: dict[tuple[str, Options], Chorus] = {}

    def join(self, name: str, options: Options, member: SharedReader) -> None:
        """Be woken when something happens to a topic; where only what is synced is wanted, by a sync too."""
        chorus = self._all.get((name, options))
        if chorus is None:
            chorus = self._all[name, options] = Chorus(lambda chorus: self._turns.ask(chorus, self._priority_of(name)))
            self._engine.wakeups.add(name, chorus.wake)
            if options.strong:
                self._engine.synced.add(name, chorus.wake)
        chorus.members[member] = None

    def leave(self, name: str, options: Options, member: SharedReader) -> None:
        """And no more."""
        chorus = self._all[name, options]
        del chorus.members[member]
        if not chorus.members:
            del self._all[name, options]
            self._engine.wakeups.discard(name, chorus.wake)
            if options.strong:
                self._engine.synced.discard(name, chorus.wake)

    def _priority_of(self, name: str) -> int:
        topic = self._engine.catalog.find(name)
        return 0 if topic is None else self._priority(topic)
