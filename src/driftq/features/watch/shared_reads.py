"""Groups of subscriptions with the same topic and options, which share one read.

Subscriptions that have read a topic to its end are at the same position, and the next bytes for all of them are equal.
So the first of them reads the topic as usual, and the others send its bytes again (`Feed.follow`). A subscription at
another position, or of a connection that does not accept bytes, is marked and reads the topic in a turn of its own.
The same holds for a subscription whose feed follows other topics too, because a feed sends the events of its topics in
the order of their names.

Invariants
- Each subscription that was a member when the topic changed is served or marked, once for all changes before its turn.
- Shared bytes were read in the same step, so the topic has not changed since.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from driftq.engine.engine import Engine
from driftq.engine.state.topic import Topic
from driftq.features.watch.position import Options
from driftq.features.watch.turns import Turns

_TOGETHER_MAX = 32
"""How many subscriptions are served in one step; the others wait for the next step."""


class Lead(NamedTuple):
    """The result of one subscription's read, for all subscriptions that were in the same state."""

    stood: object
    """All state that the bytes depended on, besides the topic."""
    cursor: int
    epoch: int
    head: int
    topic: Topic
    said: bytes


class SharedReader(Protocol):
    """A subscription, as its group uses it."""

    @property
    def alone(self) -> bool:
        """Whether the feed of this subscription follows only one topic."""
        ...

    def lead(self) -> tuple[int, Lead | None]:
        """Read now, or be marked. Return the cost, and a `Lead` if others can reuse the result."""
        ...

    def follow(self, lead: Lead) -> bool:
        """Send the bytes of `lead` if this subscription was in the same state. Return whether it was."""
        ...

    def wake(self) -> None:
        """Mark the topic, so that the feed reads it in a later turn."""
        ...


class SharedReads:
    """All subscriptions with one topic and one set of options."""

    def __init__(self, ask: "Callable[[SharedReads], None]") -> None:
        self._ask = ask
        self._asked = False
        self.members: dict[SharedReader, None] = {}
        self._left: deque[SharedReader] = deque()
        self._waiting: set[SharedReader] = set()
        """The members in `_left`. A member that is woken again keeps its place in the line; otherwise a topic that
        changes all the time would serve only the first members.
        """

    def wake(self) -> None:
        """Schedule all members, because the topic may have changed."""
        for member in self.members:
            if not member.alone:
                member.wake()
            elif member not in self._waiting:
                self._waiting.add(member)
                self._left.append(member)
        if self._left:
            self._ask_once()

    def step(self) -> int:
        """Serve up to `_TOGETHER_MAX` waiting members. Return the cost."""
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


class SharedReadTable:
    """All groups, by topic name and options. A group ends with its last member."""

    def __init__(self, engine: Engine, turns: Turns, priority: Callable[[Topic], int]) -> None:
        self._engine = engine
        self._turns = turns
        self._priority = priority
        self._all: dict[tuple[str, Options], SharedReads] = {}

    def join(self, name: str, options: Options, member: SharedReader) -> None:
        """Wake `member` whenever the topic changes; with `strong` options, also after each sync."""
        shared = self._all.get((name, options))
        if shared is None:
            shared = self._all[name, options] = SharedReads(
                lambda shared: self._turns.ask(shared, self._priority_of(name))
            )
            self._engine.wakeups.add(name, shared.wake)
            if options.strong:
                self._engine.synced.add(name, shared.wake)
        shared.members[member] = None

    def leave(self, name: str, options: Options, member: SharedReader) -> None:
        """Remove a member. The last one ends the group."""
        shared = self._all[name, options]
        del shared.members[member]
        if not shared.members:
            del self._all[name, options]
            self._engine.wakeups.discard(name, shared.wake)
            if options.strong:
                self._engine.synced.discard(name, shared.wake)

    def _priority_of(self, name: str) -> int:
        topic = self._engine.catalog.find(name)
        return 0 if topic is None else self._priority(topic)
