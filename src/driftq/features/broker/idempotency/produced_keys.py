"""Keys of produced messages (http-v1 §13.2): within a window, one message per tenant, final topic and key.

    absent ─begin─► under way ─stored─► committed ─window over─► absent
                        └────fail────► absent

Pure: this module has no access to clock or log. The record of a message creates its entry, live and when the log is
replayed, and the window starts at that record's commit time. A restart therefore neither shortens nor extends it.

Invariants
- A key that is under way belongs to a waiting request. It ends with that request and never survives a restart.
- An entry stays longer than its window while a group has an outcome for the key (`hold`), because only the entry lists
  the messages that the outcome is about.
"""

from collections import deque
from enum import Enum

from msgspec import Struct

Id = tuple[str, str, str]
"""Tenant, final topic and key."""

_SWEEP_MAX = 1000
"""How many entries one sweep checks at most."""
_NEVER = -(1 << 62)


class KeyDecision(Enum):
    """The decision on a produce with a key."""

    NEW = "new"
    DUPLICATE = "duplicate"
    BUSY = "busy"


class _Stored(Struct, gc=False):
    """The known messages of one key."""

    ts: int
    offsets: list[int]
    holders: int = 0


class ProduceScope:
    """The produced keys of all topics."""

    def __init__(self, ttl_ms: int) -> None:
        self._ttl_ms = ttl_ms
        self._stored: dict[Id, _Stored] = {}
        self._under_way: set[Id] = set()
        self._order: deque[tuple[int, Id]] = deque()

    def __len__(self) -> int:
        return len(self._stored)

    def begin(self, identity: Id, now: int) -> KeyDecision:
        """Reserve a key for a produce, if it is new. After NEW, a call of `stored` or `fail` must follow."""
        found = self._stored.get(identity)
        if found is not None and now < found.ts + self._ttl_ms:
            return KeyDecision.DUPLICATE
        if identity in self._under_way:
            return KeyDecision.BUSY
        self._under_way.add(identity)
        return KeyDecision.NEW

    def fail(self, identity: Id) -> None:
        """Release a key whose message was not stored, so that the next produce may use it."""
        self._under_way.discard(identity)

    def stored(self, identity: Id, ts: int, offset: int) -> None:
        """Record that a message with this key is committed. Idempotent, so replay may call it again."""
        self._under_way.discard(identity)
        found = self._stored.get(identity)
        if found is None:
            found = self._stored[identity] = _Stored(ts, [])
        found.ts = max(found.ts, ts)
        self._note(found, offset)
        self._order.append((ts, identity))

    def known(self, identity: Id, offsets: list[int]) -> None:
        """Add messages that an outcome of a group names. The group must hold the key."""
        for offset in offsets:
            self._note(self._stored[identity], offset)

    @staticmethod
    def _note(found: _Stored, offset: int) -> None:
        if offset not in found.offsets:
            found.offsets.append(offset)

    def offsets(self, identity: Id) -> list[int]:
        """Return the offsets of the known messages with this key."""
        found = self._stored.get(identity)
        return [] if found is None else found.offsets

    def hold(self, identity: Id) -> None:
        """Keep the entry for a group that has an outcome for the key, until `let_go`."""
        found = self._stored.get(identity)
        if found is None:
            found = self._stored[identity] = _Stored(_NEVER, [])
        found.holders += 1

    def let_go(self, identity: Id, now: int) -> None:
        """End one `hold`. Drop the entry if that was the last one and its window is over."""
        found = self._stored[identity]
        found.holders -= 1
        self._drop_if_over(identity, found, now)

    def sweep(self, now: int, most: int = _SWEEP_MAX) -> None:
        """Drop entries whose window is over, checking at most `most` of them."""
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
        """Return identity, commit time and offsets of every stored key."""
        return [(key, found.ts, found.offsets) for key, found in self._stored.items() if found.ts != _NEVER]

    def restore(self, entries: list[tuple[Id, int, list[int]]]) -> None:
        """Restore captured entries into an empty scope."""
        for identity, ts, offsets in sorted(entries, key=lambda entry: entry[1]):
            for offset in offsets:
                self.stored(identity, ts, offset)
