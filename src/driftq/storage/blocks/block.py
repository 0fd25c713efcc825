"""The records of one Append frame, as columns: build one, wrap one, read ranges of its rows.

A block is its frame's bytes and a handful of numbers; wrapping copies nothing. Rows are counted from 0 and row `i` has
seq `first_seq + i`. Every reader, live or recovering, in memory or from a segment, goes through `Block`, or through
`OpenBlock` for the rows that have not become a block yet; both answer the same questions (`RowSource`).

Each column of texts is Arrow's layout inside the frame (`storage/blocks/frame_columns`), so
`storage/blocks/block_arrow` wraps it as it stands.
"""

from array import array
from collections.abc import Sequence
from io import BytesIO
from operator import add, sub
from struct import Struct
from typing import Protocol

from driftq.storage.blocks.frame import HEAD_BYTES, HEADER, Bad, Frame, Kind, encode_frame, without_salt
from driftq.storage.blocks.frame_columns import (
    BATCH_NODE,
    DATA,
    KEY,
    META,
    NODE,
    PLAIN,
    TAG,
    TS,
    WRITER,
    Spans,
    find_columns,
    shape_of,
    up8,
)
from driftq.storage.blocks.rows import Rows, Texts, is_plain, spread

_PAD = [bytes(size) for size in range(8)]
_APPEND = int(Kind.APPEND)
_LARGE_BYTES = 8192
"""From so many bytes on a copy costs more than to go through the pieces."""
_OFFSET = Struct("<i").unpack_from


class RowSource(Protocol):
    """Rows that can be read: a block, or the open block. Ranges are [first, last) in rows."""

    first_seq: int
    count: int

    @property
    def plain(self) -> bool:
        """No tag or node needs escaping in JSON."""
        ...

    @property
    def batch_node(self) -> bytes | None:
        """The node of every row, when they share one."""
        ...

    def data(self, first: int, last: int) -> list[bytes]:
        """The payloads."""
        ...

    def tags(self, first: int, last: int) -> list[bytes | None] | None:
        """The tags, or None when no row has one."""
        ...

    def nodes(self, first: int, last: int) -> list[bytes | None] | None:
        """The nodes of their own, or None when no row has one."""
        ...

    def metas(self, first: int, last: int) -> list[bytes | None] | None:
        """The metas, or None when no row has one."""
        ...

    def times(self, first: int, last: int) -> int | list[int]:
        """Commit times, which never go down: one number when they are all the same."""
        ...

    def weights(self, first: int, last: int) -> Sequence[int]:
        """Running totals of payload bytes from some base, one more than there are rows."""
        ...

    def weight(self, first: int, last: int) -> int:
        """Payload bytes of some rows."""
        ...

    def tag_bytes(self) -> bytes:
        """All tags back to back, for a search that rules blocks out."""
        ...


def encode_block(
    rows: Rows,
    *,
    topic_id: int,
    first_seq: int,
    ts: int,
    synced_to: int = 0,
    times: "array[int] | None" = None,
    key: bytes | None = None,
    writer: bytes | None = None,
    flags: bytes = b"",
) -> bytes:
    """The Append frame of these rows. `times` is given when their commit times differ."""
    assert rows.node is None or rows.batch_node is None, "a row has one node"
    bits = 0
    plain = True
    columns: list[bytes] = []
    if times is not None:
        bits |= TS
        columns.append(times.tobytes())
    if rows.tag is not None:
        bits |= TAG
        plain = all(map(is_plain, rows.tag.pieces))
        columns.append(_nullable(rows.tag))
    if rows.node is not None:
        bits |= NODE
        plain = plain and is_plain(rows.node.data)
        columns.append(_nullable(rows.node))
    if rows.batch_node is not None:
        bits |= BATCH_NODE
        plain = plain and is_plain(rows.batch_node)
        columns.append(rows.batch_node)
    if rows.meta is not None:
        bits |= META
        columns.append(_nullable(rows.meta))
    if key is not None:
        bits |= KEY
        columns.append(key)
    if writer is not None:
        bits |= WRITER
        columns.append(writer)
    offsets = rows.data.offsets.tobytes()
    data = (offsets, _PAD[-len(offsets) & 7], *rows.data.pieces)
    large = rows.payload_bytes > _LARGE_BYTES
    if not large:
        columns.append(b"".join(data))
    return encode_frame(
        _APPEND,
        columns,
        data if large else (),
        topic_id=topic_id,
        seq=first_seq,
        ts=ts,
        synced_to=synced_to,
        bits=bits | PLAIN if plain else bits,
        count=rows.count,
        flags=flags,
    )


def _nullable(texts: Texts) -> bytes:
    size = (texts.count + 7) >> 3
    valid = texts.valid if texts.valid is not None else b"\xff" * size
    offsets = texts.offsets.tobytes()
    return b"".join((valid, _PAD[-size & 7], offsets, _PAD[-len(offsets) & 7], texts.data))


def slices(buffer: bytes, base: int, offsets: Sequence[int]) -> list[bytes]:
    """The values between neighbouring offsets, counted from `base` of the buffer."""
    if len(offsets) == 2:
        return [buffer[base + offsets[0] : base + offsets[1]]]
    reader = BytesIO(buffer)  # shares the bytes, and a read is half the price of a slice
    reader.seek(base + offsets[0])
    return list(map(reader.read, map(sub, offsets[1:], offsets)))


def masked(values: list[bytes], valid: bytes, first: int) -> list[bytes | None]:
    """The values with None where the bitmap says that there is none; `first` is the row of the first value."""
    skip = first & 7
    present = spread(valid[first >> 3 : (first + len(values) + 7) >> 3], skip + len(values))
    return [value if here else None for value, here in zip(values, present[skip:], strict=True)]


class Block:
    """A wrapped Append frame. Immutable; its delete flags are copied from the frame, not followed."""

    __slots__ = ("__weakref__", "_at", "bits", "count", "first_seq", "frame", "ts")

    def __init__(self, frame: bytes, header: Frame, at: Spans) -> None:
        self.frame = frame
        _, self.bits, self.count, _, self.first_seq, self.ts, _, _, _, _ = header
        self._at = at

    @staticmethod
    def read(buffer: bytes, header: Frame) -> "Block | Bad":
        """Wrap an accepted Append frame, or say why its columns make no sense."""
        buffer = without_salt(buffer, header)
        at = find_columns(buffer, header.bits, header.count)
        if at is None:
            return Bad("its columns do not fit", header)
        return Block(buffer, header, at)

    @staticmethod
    def of(frame: bytes) -> "Block":
        """Wrap a frame that this process has just encoded: nothing is verified."""
        _, _, kind, bits, count, topic_id, seq, ts, synced_to = HEADER.unpack_from(frame)
        header = Frame(kind, bits, count, topic_id, seq, ts, synced_to, 0, len(frame))
        present, unpack, cursor = shape_of(bits)
        at: Spans = {}
        for bit, size in zip(present, unpack(frame, HEAD_BYTES), strict=True):
            at[bit] = (cursor, size)
            cursor += (size + 7) & ~7
        return Block(frame, header, at)

    @property
    def last_seq(self) -> int:
        """Seq of the last row."""
        return self.first_seq + self.count - 1

    @property
    def last_ts(self) -> int:
        """Commit time of the last row."""
        times = self.times(self.count - 1, self.count)
        return times if isinstance(times, int) else times[0]

    @property
    def plain(self) -> bool:
        """No tag or node needs escaping in JSON."""
        return bool(self.bits & PLAIN)

    @property
    def batch_node(self) -> bytes | None:
        """The node of every row, when they share one."""
        return self._bytes(BATCH_NODE)

    @property
    def key(self) -> bytes | None:
        """The idempotency key of the write."""
        return self._bytes(KEY)

    @property
    def writer(self) -> bytes | None:
        """Who staged the write, and which batch."""
        return self._bytes(WRITER)

    @property
    def flags(self) -> bytes:
        """The delete flags as the frame has them."""
        return self.frame[len(self.frame) - self.count :]

    def without_flags(self) -> "Block":
        """The same with every row live: the WAL deletes by frames, and what stands in its flags is an accident."""
        if not self.flags.strip(b"\0"):
            return self
        return Block.of(self.frame[: len(self.frame) - self.count] + bytes(self.count))

    @property
    def payload_bytes(self) -> int:
        """Data plus meta, as the contract counts."""
        start, size = self._at[DATA]
        total = start + size - self._text_base(DATA)
        if self.bits & META:
            start, size = self._at[META]
            total += start + size - self._text_base(META)
        return total

    def data(self, first: int, last: int) -> list[bytes]:
        """The payloads."""
        return slices(self.frame, self._text_base(DATA), self._offsets(DATA, first, last))

    def tags(self, first: int, last: int) -> list[bytes | None] | None:
        """The tags, or None when no row has one."""
        return self._texts(TAG, first, last)

    def nodes(self, first: int, last: int) -> list[bytes | None] | None:
        """The nodes of their own, or None when no row has one."""
        return self._texts(NODE, first, last)

    def metas(self, first: int, last: int) -> list[bytes | None] | None:
        """The metas, or None when no row has one."""
        return self._texts(META, first, last)

    def times(self, first: int, last: int) -> int | list[int]:
        """Commit times: one number when they are all the same."""
        if not self.bits & TS:
            return self.ts
        start, _ = self._at[TS]
        times = array("q", self.frame[start + 8 * first : start + 8 * last])
        return times[0] if times and times[0] == times[-1] else times.tolist()

    def weights(self, first: int, last: int) -> Sequence[int]:
        """Running totals of payload bytes from some base."""
        totals = self._offsets(DATA, first, last)
        if self.bits & META:
            return list(map(add, totals, self._offsets(META, first, last)))
        return totals

    def weight(self, first: int, last: int) -> int:
        """Payload bytes of some rows."""
        size = self._text_bytes(DATA, first, last)
        return size + self._text_bytes(META, first, last) if self.bits & META else size

    def _text_bytes(self, bit: int, first: int, last: int) -> int:
        start = self._offsets_at(bit)
        (begin,), (end,) = _OFFSET(self.frame, start + 4 * first), _OFFSET(self.frame, start + 4 * last)
        return int(end - begin)

    def tag_bytes(self) -> bytes:
        """All tags back to back, for a search that rules blocks out."""
        if not self.bits & TAG:
            return b""
        start, size = self._at[TAG]
        return self.frame[self._text_base(TAG) : start + size]

    def rows(self) -> Rows:
        """The same rows as a value of their own, for gathering."""
        return Rows(
            self._copy(DATA),
            tag=self._copy(TAG) if self.bits & TAG else None,
            node=self._copy(NODE) if self.bits & NODE else None,
            meta=self._copy(META) if self.bits & META else None,
            batch_node=self.batch_node,
        )

    def span(self, bit: int) -> tuple[int, int]:
        """Where a column stands in the frame: start and size. Data has bit 0."""
        return self._at[bit]

    def _copy(self, bit: int) -> Texts:
        frame, count = self.frame, self.count
        start, size = self._at[bit]
        offsets = start
        valid = None
        if bit:
            bits = (count + 7) >> 3
            offsets += (bits + 7) & ~7
            valid = frame[start : start + bits]
            if all_set(valid, count):
                valid = None
        end = offsets + 4 * count + 4
        return Texts(frame[(end + 7) & ~7 : start + size], array("i", frame[offsets:end]), valid)

    def _bytes(self, bit: int) -> bytes | None:
        span = self._at.get(bit)
        return None if span is None else self.frame[span[0] : span[0] + span[1]]

    def _offsets_at(self, bit: int) -> int:
        start, _ = self._at[bit]
        return start + up8((self.count + 7) >> 3) if bit else start

    def _text_base(self, bit: int) -> int:
        return self._offsets_at(bit) + up8(4 * (self.count + 1))

    def _offsets(self, bit: int, first: int, last: int) -> list[int]:
        start = self._offsets_at(bit)
        return array("i", self.frame[start + 4 * first : start + 4 * last + 4]).tolist()

    def _texts(self, bit: int, first: int, last: int) -> list[bytes | None] | None:
        if not self.bits & bit:
            return None
        values = slices(self.frame, self._text_base(bit), self._offsets(bit, first, last))
        start, _ = self._at[bit]
        valid = self.frame[start : start + ((self.count + 7) >> 3)]
        if all_set(valid, self.count):
            return values  # type: ignore[return-value]
        return masked(values, valid, first)


def all_set(valid: bytes, count: int) -> bool:
    """Does the bitmap say that every row has a value?"""
    whole, rest = divmod(count, 8)
    return valid.count(255, 0, whole) == whole and (not rest or valid[whole] & ((1 << rest) - 1) == (1 << rest) - 1)
