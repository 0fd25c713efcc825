"""Idempotency keys of one topic: which seqs an earlier write with the same key got.

A key is valid for the length of its window: while its write was stamped at or above the `kept_from` that callers
compute (`engine.timeline`). The key is stored in the write's own frame and in checkpoints, so it lives as long as the
durability class of the write promises: that of an `ephemeral` write ends with the process. An entry is one integer, so
that millions of keys cost the garbage collector nothing: commit time, first seq, count, and a bit for `lasts`.
"""

import sys
from collections import deque
from collections.abc import Iterator

_COUNT_BITS = 32
_SEQ_BITS = 64


class IdempotencyKeys:
    """Maps each key to the write that used it, oldest first."""

    __slots__ = ("_entries", "_order")

    def __init__(self) -> None:
        self._entries: dict[bytes, int] = {}
        self._order: deque[tuple[int, bytes]] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: bytes) -> bool:
        """Whether the key was used and is not removed yet; its window may be over."""
        return key in self._entries

    def remember(self, key: bytes, ts: int, first_seq: int, count: int, *, lasts: bool = True) -> None:
        """Store the key of a committed write; `lasts` is whether the write survives a restart."""
        self._entries.pop(key, None)
        self._entries[key] = ((ts << _SEQ_BITS | first_seq) << _COUNT_BITS | count) << 1 | lasts
        self._order.append((ts, key))

    def find(self, key: bytes, kept_from: int) -> tuple[int, int] | None:
        """Return first seq and count of the write that used the key.

        Return None if the key is unknown, or was used before the time `kept_from`.
        """
        entry = self._entries.get(key)
        if entry is None:
            return None
        ts, first_seq, count = _unpack(entry)
        return (first_seq, count) if ts >= kept_from else None

    @property
    def oldest_ts(self) -> int:
        """Return the lowest stamp that a key may have. There must be a key."""
        return self._order[0][0]

    def expire(self, kept_from: int, most: int = sys.maxsize) -> None:
        """Remove keys that were stamped below `kept_from`. Looks at `most` uses of keys at most."""
        order, entries = self._order, self._entries
        for _ in range(min(most, len(order))):
            ts, key = order[0]
            if ts >= kept_from:
                return
            order.popleft()
            entry = entries.get(key)
            # A key that was used again after its window is in the order twice; its entry belongs to the newer use.
            if entry is not None and _unpack(entry)[0] == ts:
                del entries[key]

    def items(self) -> Iterator[tuple[bytes, int, int, int]]:
        """Yield key, commit time, first seq and count of the keys that survive a restart, oldest first."""
        for key, entry in self._entries.items():
            if entry & 1:
                yield (key, *_unpack(entry))


def _unpack(entry: int) -> tuple[int, int, int]:
    entry >>= 1
    count = entry & ((1 << _COUNT_BITS) - 1)
    rest = entry >> _COUNT_BITS
    return rest >> _SEQ_BITS, rest & ((1 << _SEQ_BITS) - 1), count
