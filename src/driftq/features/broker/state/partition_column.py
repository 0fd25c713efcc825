"""The partition of each message of a topic, packed, so that the next message of a partition is found in memory.

    column:  0 2 1 1 0 …   one number per message, in chunks of 4096
             sealed, sealed, …, tail

A full chunk is kept compressed, together with the set of partitions in it; the last chunk is not compressed. For a few
partitions this takes a tenth to half a byte per message. A chunk that was read stays unpacked in a cache, so a reader
that goes through a topic unpacks each chunk once.

Invariants
- offset `n` is at place `n % 4096` of chunk `n // 4096`; chunks below the first one kept are gone;
- a place without a message, or whose message was lost before it was counted, has the number `absent`.
"""

import zlib
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache

from driftq.storage.segments.tag_codes import Column

CHUNK = 4096
_SPAN = 256
"""How many chunks share one summary of their partitions, so that a search skips them quickly."""
NARROW_MAX = 255
"""Up to this number of partitions, a partition number fits in one byte, with one value left for `absent`."""
_UNPACKED_MAX = 256
_FASTEST = 1


class PartitionColumn:
    """The partitions of all messages of one topic."""

    __slots__ = ("_first", "_lasts", "_masks", "_sealed", "_spans", "_tail", "_wide", "absent")

    def __init__(self, partitions: int) -> None:
        self._wide = partitions > NARROW_MAX
        self.absent = (1 << 16) - 1 if self._wide else NARROW_MAX
        self._sealed: list[bytes] = []
        self._masks: list[int] = []
        """The partitions in each sealed chunk, as bits."""
        self._spans: dict[int, int] = {}
        """The partitions in each span of `_SPAN` chunks, as bits, by span number."""
        self._first = 0
        """The number of the first chunk in `_sealed`."""
        self._tail: Column = self._column()
        self._lasts = array("q", [-1]) * partitions

    def _column(self) -> Column:
        return array("H") if self._wide else bytearray()

    @property
    def head(self) -> int:
        """The highest known offset plus one."""
        return (self._first + len(self._sealed)) * CHUNK + len(self._tail)

    def last(self, partition: int) -> int:
        """Return the highest message of a partition, or -1."""
        return self._lasts[partition]

    def add(self, partition: int, offset: int) -> None:
        """Add a message after all others."""
        if offset > self.head:
            self._skip_to(offset)
        self._tail.append(partition)
        self._lasts[partition] = offset
        if len(self._tail) == CHUNK:
            self._seal()

    def extend(self, offset: int, partitions: Sequence[int]) -> None:
        """Add consecutive messages, a chunk at a time: at a start there may be a million."""
        if offset > self.head:
            self._skip_to(offset)
        done = 0
        while done < len(partitions):
            piece = partitions[done : done + CHUNK - len(self._tail)]
            for partition, place in self._places(piece):
                self._lasts[partition] = offset + done + place
            self._tail.extend(piece)
            done += len(piece)
            if len(self._tail) == CHUNK:
                self._seal()

    def _places(self, piece: Sequence[int]) -> Iterable[tuple[int, int]]:
        """Yield each partition of some messages, with the place of its last message among them."""
        if self._wide:
            return {partition: place for place, partition in enumerate(piece)}.items()
        column = bytes(piece)
        return [(partition, column.rindex(partition)) for partition in set(column)]

    def _skip_to(self, offset: int) -> None:
        """Fill the places up to an offset with `absent`."""
        if not self._sealed and not self._tail:
            self._first = offset // CHUNK
        while self.head < offset:
            self._tail.extend([self.absent] * min(offset - self.head, CHUNK - len(self._tail)))
            if len(self._tail) == CHUNK:
                self._seal()

    def _seal(self) -> None:
        mask = 0
        for partition in set(self._tail):
            if partition != self.absent:
                mask |= 1 << partition
        number = self._first + len(self._sealed)
        self._spans[number // _SPAN] = self._spans.get(number // _SPAN, 0) | mask
        self._masks.append(mask)
        self._sealed.append(
            zlib.compress(bytes(self._tail.tobytes() if isinstance(self._tail, array) else self._tail), _FASTEST)
        )
        self._tail = self._column()

    def partition_at(self, offset: int) -> int | None:
        """Return the partition of a message; None if there is no message."""
        number, place = divmod(offset, CHUNK)
        if offset >= self.head or number < self._first:
            return None
        partition = self._chunk(number)[place]
        return None if partition == self.absent else partition

    def at_or_after(self, partition: int, offset: int) -> int | None:
        """Return the first message of a partition at or above an offset, or None."""
        if offset > self._lasts[partition]:
            return None
        offset = max(offset, self._first * CHUNK)
        number, place = divmod(offset, CHUNK)
        while number < self._first + len(self._sealed):
            if self._masks[number - self._first] >> partition & 1:
                found = _find(self._chunk(number), partition, place)
                if found >= 0:
                    return number * CHUNK + found
            number, place = self._next(number + 1, partition), 0
        found = _find(self._tail, partition, place)
        return number * CHUNK + found if found >= 0 else None

    def _next(self, number: int, partition: int) -> int:
        """Return the first chunk from `number` on that may contain the partition, or the tail."""
        end = self._first + len(self._sealed)
        while number < end and not self._masks[number - self._first] >> partition & 1:
            skip = number % _SPAN == 0 and not self._spans[number // _SPAN] >> partition & 1
            number += _SPAN if skip else 1
        return min(number, end)

    def _chunk(self, number: int) -> "Column | bytes":
        place = number - self._first
        if place == len(self._sealed):
            return self._tail
        return _unpacked_wide(self._sealed[place]) if self._wide else _unpacked(self._sealed[place])

    def trim(self, start: int) -> None:
        """Drop the chunks below an offset."""
        gone = min(start // CHUNK - self._first, len(self._sealed))
        if gone > 0:
            del self._sealed[:gone], self._masks[:gone]
            self._first += gone
            for span in [span for span in self._spans if (span + 1) * _SPAN <= self._first]:
                del self._spans[span]


def _find(column: "Column | bytes", partition: int, place: int) -> int:
    if not isinstance(column, array):
        return column.find(partition, place)
    try:
        return column.index(partition, place)
    except ValueError:
        return -1


@lru_cache(_UNPACKED_MAX)
def _unpacked(packed: bytes) -> bytes:
    return zlib.decompress(packed)


@lru_cache(_UNPACKED_MAX)
def _unpacked_wide(packed: bytes) -> "array[int]":
    return array("H", zlib.decompress(packed))
