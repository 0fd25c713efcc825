"""Idempotency keys of one topic: which seqs an earlier write with the same key got.

A key is remembered while it is at most as old as the window: while its write was stamped at or above the `kept_from`
that callers compute (`engine.timeline`). It travels in the write's own frame and stands in checkpoints, so it
lives exactly as long as the write's class promises: that of an `ephemeral` write ends with the process. An entry is
one integer, so that millions of keys are no garbage collector's business: commit time, first seq, count, and a bit
that says whether it lasts.
"""

import sys
from collections import deque
from collections.abc import Iterator

_COUNT_BITS = 32
_SEQ_BITS = 64


class IdempotencyKeys:
    """Key to the write that used it, oldest first."""

    __slots__ = ("_entries", "_order")

    def __init__(self) -> None:
        self._entries: dict[bytes, int] = {}
        self._order: deque[tuple[int, bytes]] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: bytes) -> bool:
        """Whether the key was used and is not forgotten yet; its window may be over."""
        return key in self._entries

    def remember(self, key: bytes, ts: int, first_seq: int, count: int, *, lasts: bool = True) -> None:
        """A write with this key was committed; `lasts` says whether it will be there after a restart."""
        self._entries.pop(key, None)
        self._entries[key] = ((ts << _SEQ_BITS | first_seq) << _COUNT_BITS | count) << 1 | lasts
        self._order.append((ts, key))

    def find(self, key: bytes, kept_from: int) -> tuple[int, int] | None:
        """First seq and count of the write that used the key, while it is remembered."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        ts, first_seq, count = _unpack(entry)
        return (first_seq, count) if ts >= kept_from else None

    @property
    def oldest_ts(self) -> int:
        """The lowest stamp that a key may have. There must be a key."""
        return self._order[0][0]

    def expire(self, kept_from: int, most: int = sys.maxsize) -> None:
        """Forget what was stamped below, and is out of its window, up to so many uses of keys."""
        order, entries = self._order, self._entries
        for _ in range(min(most, len(order))):
            ts, key = order[0]
            if ts >= kept_from:
                return
            order.popleft()
            entry = entries.get(key)
            # A key used again after its window stands in the order twice; its entry is the newer use.
            if entry is not None and _unpack(entry)[0] == ts:
                del entries[key]

    def items(self) -> Iterator[tuple[bytes, int, int, int]]:
        """Key, commit time, first seq and count of those that last, oldest first."""
        for key, entry in self._entries.items():
            if entry & 1:
                yield (key, *_unpack(entry))


def _unpack(entry: int) -> tuple[int, int, int]:
    entry >>= 1
    count = entry & ((1 << _COUNT_BITS) - 1)
    rest = entry >> _COUNT_BITS
    return rest >> _SEQ_BITS, rest & ((1 << _SEQ_BITS) - 1), count
