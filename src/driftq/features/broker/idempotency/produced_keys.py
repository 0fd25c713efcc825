"""Which messages were produced already (http-v1 §13.2): one message per tenant, final topic and key, in a window.

    absent ─begin─► under way ─stored─► committed ─window over─► absent
                        └────fail────► absent

Pure: it knows neither clock nor log. An entry is made by the record of its message, live and when the log is read
again, and its window counts from that record's commit time; so a restart neither shortens nor extends it.

Invariants
- A key that is under way has a request that waits: it ends with that request, and no restart sees it.
- An entry stays beyond its window while a group has an outcome for the key (`hold`), because only so it is known
  which messages that outcome is about.
"""

from collections import deque
from enum import Enum

from msgspec import Struct

Id = tuple[str, str, str]
"""Tenant, final topic, key."""

_SWEEP_MAX = 1000
"""So many entries are looked at in one sweep."""
_NEVER = -(1 << 62)


class Gate(Enum):
    """What becomes of a produce with a key."""

    NEW = "new"
    DUPLICATE = "duplicate"
    BUSY = "busy"


class _Stored(Struct, gc=False):
    """What is known of the messages of one key."""

    ts: int
    offsets: list[int]
    holders: int = 0


class ProduceScope:
    """All keys of all topics."""

    def __init__(self, ttl_ms: int) -> None:
        self._ttl_ms = ttl_ms
        self._stored: dict[Id, _Stored] = {}
        self._under_way: set[Id] = set()
        self._order: deque[tuple[int, Id]] = deque()

    def __len__(self) -> int:
        return len(self._stored)

    def begin(self, identity: Id, now: int) -> Gate:
        """May a message with this key be stored? If NEW, `stored` or `fail` must follow."""
        found = self._stored.get(identity)
        if found is not None and now < found.ts + self._ttl_ms:
            return Gate.DUPLICATE
        if identity in self._under_way:
            return Gate.BUSY
        self._under_way.add(identity)
        return Gate.NEW

    def fail(self, identity: Id) -> None:
        """Nothing was stored; the next one may try."""
        self._under_way.discard(identity)

    def stored(self, identity: Id, ts: int, offset: int) -> None:
        """A message with this key has been committed. Told again, when the log is read again, it changes nothing."""
        self._under_way.discard(identity)
        found = self._stored.get(identity)
        if found is None:
            found = self._stored[identity] = _Stored(ts, [])
        found.ts = max(found.ts, ts)
        self._note(found, offset)
        self._order.append((ts, identity))

    def known(self, identity: Id, offsets: list[int]) -> None:
        """A group has an outcome for these messages, whenever they were stored; it holds the key."""
        for offset in offsets:
            self._note(self._stored[identity], offset)

    @staticmethod
    def _note(found: _Stored, offset: int) -> None:
        if offset not in found.offsets:
            found.offsets.append(offset)

    def offsets(self, identity: Id) -> list[int]:
        """The messages with this key that are known."""
        found = self._stored.get(identity)
        return [] if found is None else found.offsets

    def hold(self, identity: Id) -> None:
        """A group has an outcome for the key: keep what is known of it until `let_go`."""
        found = self._stored.get(identity)
        if found is None:
            found = self._stored[identity] = _Stored(_NEVER, [])
        found.holders += 1

    def let_go(self, identity: Id, now: int) -> None:
        """It has none any more."""
        found = self._stored[identity]
        found.holders -= 1
        self._drop_if_over(identity, found, now)

    def sweep(self, now: int, most: int = _SWEEP_MAX) -> None:
        """Forget what is out of its window, a bounded number at a time."""
        order = self._order
        for _ in range(min(len(order), most)):
            ts, identity = order[0]
            if now < ts + self._ttl_ms:
                return
            order.popleft()
            if (found := self._stored.get(identity)) is not None:
                self._drop_if_over(identity, found, now)

    def _drop_if_over(self, identity: Id, found: _Stored, now: int) -> None:
        if not found.holders and now >= found.ts + self._ttl_ms:
            del self._stored[identity]

    # Checkpoints

    def capture(self) -> list[tuple[Id, int, list[int]]]:
        """Identity, commit time and offsets of every key that was stored."""
        return [(key, found.ts, found.offsets) for key, found in self._stored.items() if found.ts != _NEVER]

    def restore(self, entries: list[tuple[Id, int, list[int]]]) -> None:
        """And back, into an empty scope."""
        for identity, ts, offsets in sorted(entries, key=lambda entry: entry[1]):
            for offset in offsets:
                self.stored(identity, ts, offset)
