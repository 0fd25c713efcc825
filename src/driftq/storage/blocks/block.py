"""The records of one Append frame, as columns: build a block, wrap a frame, read ranges of its rows.

A block is the bytes of its frame and a few numbers; wrapping a frame copies nothing. Rows are counted from 0, and row
`i` has seq `first_seq + i`. Every reader, live or in recovery, in memory or from a segment, uses `Block`, or
`OpenBlock` for the rows that are not a block yet. Both have the same interface (`RowSource`).

Each column of texts has Arrow's layout inside the frame (`storage/blocks/frame_columns`), so
`storage/blocks/block_arrow` can wrap it without a copy.
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
from driftq.storage.blocks.rows import Rows, Texts, is_plain, partition_column

_PAD = [bytes(size) for size in range(8)]
_APPEND = int(Kind.APPEND)
_LARGE_BYTES = 8192
"""From this size on, one more copy costs more than handling the pieces separately."""
_OFFSET = Struct("<i").unpack_from


class RowSource(Protocol):
    """Rows that can be read: a block, or the open block. Ranges are rows [first, last)."""

    first_seq: int
    count: int

    @property
    def plain(self) -> bool:
        """Whether no tag or node needs escaping in JSON."""
        ...

    @property
    def batch_node(self) -> bytes | None:
        """Return the node of every row, if they share one, else None."""
        ...

    def data(self, first: int, last: int) -> list[bytes]:
        """Return the payloads of rows [first, last)."""
        ...

    def tags(self, first: int, last: int) -> list[bytes | None] | None:
        """Return the tags of rows [first, last), or None if no row of the source has one."""
        ...

    def nodes(self, first: int, last: int) -> list[bytes | None] | None:
        """Return the nodes of rows [first, last), or None if no row of the source has one."""
        ...

    def metas(self, first: int, last: int) -> list[bytes | None] | None:
        """Return the metas of rows [first, last), or None if no row of the source has one."""
        ...

    def times(self, first: int, last: int) -> int | list[int]:
        """Return the commit times, which never decrease, or one number if they are all equal."""
        ...

    def weights(self, first: int, last: int) -> Sequence[int]:
        """Return running totals of payload bytes, not necessarily from 0; one more than there are rows."""
        ...

    def weight(self, first: int, last: int) -> int:
        """Return the payload bytes of rows [first, last)."""
        ...

    def tag_bytes(self) -> bytes:
        """Return all tags back to back, for a search that excludes whole blocks."""
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
    """Return the Append frame of these rows. `times` is given if their commit times differ."""
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
    """Return the values between neighbouring offsets, counted from `base` of the buffer."""
    if len(offsets) == 2:
        return [buffer[base + offsets[0] : base + offsets[1]]]
    reader = BytesIO(buffer)  # shares the bytes, and a read takes half the time of a slice
    reader.seek(base + offsets[0])
    return list(map(reader.read, map(sub, offsets[1:], offsets)))


def masked(values: list[bytes], valid: bytes, first: int) -> list[bytes | None]:
    """Return the values, with None where the bitmap has no bit. `first` is the row of the first value."""
    skip = first & 7
    present = partition_column(valid[first >> 3 : (first + len(values) + 7) >> 3], skip + len(values))
    return [value if here else None for value, here in zip(values, present[skip:], strict=True)]


class Block:
    """A wrapped Append frame. Immutable; its delete flags are those of the frame when it was read."""

    __slots__ = ("__weakref__", "_at", "bits", "count", "first_seq", "frame", "ts")

    def __init__(self, frame: bytes, header: Frame, at: Spans) -> None:
        self.frame = frame
        _, self.bits, self.count, _, self.first_seq, self.ts, _, _, _, _ = header
        self._at = at

    @staticmethod
    def read(buffer: bytes, header: Frame) -> "Block | Bad":
        """Wrap an accepted Append frame, or return why its columns are invalid."""
        buffer = without_salt(buffer, header)
        at = find_columns(buffer, header.bits, header.count)
        if at is None:
            return Bad("its columns are invalid", header)
        return Block(buffer, header, at)

    @staticmethod
    def of(frame: bytes) -> "Block":
        """Wrap a frame that this process has just encoded, without verifying it."""
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
        """Return the seq of the last row."""
        return self.first_seq + self.count - 1

    @property
    def last_ts(self) -> int:
        """Return the commit time of the last row."""
        times = self.times(self.count - 1, self.count)
        return times if isinstance(times, int) else times[0]

    @property
    def plain(self) -> bool:
        """Whether no tag or node needs escaping in JSON."""
        return bool(self.bits & PLAIN)

    @property
    def batch_node(self) -> bytes | None:
        """Return the node of every row, if they share one, else None."""
        return self._bytes(BATCH_NODE)

    @property
    def key(self) -> bytes | None:
        """Return the idempotency key of the write."""
        return self._bytes(KEY)

    @property
    def writer(self) -> bytes | None:
        """Return the writer and batch of a staged write."""
        return self._bytes(WRITER)

    @property
    def flags(self) -> bytes:
        """Return the delete flags of the frame."""
        return self.frame[len(self.frame) - self.count :]

    def without_flags(self) -> "Block":
        """Return this block with every row live. In the WAL, deletes are frames, and flag bytes mean nothing."""
        if not self.flags.strip(b"\0"):
            return self
        return Block.of(self.frame[: len(self.frame) - self.count] + bytes(self.count))

    @property
    def payload_bytes(self) -> int:
        """Return the bytes of data and meta, as the contract counts them."""
        start, size = self._at[DATA]
        total = start + size - self._text_base(DATA)
        if self.bits & META:
            start, size = self._at[META]
            total += start + size - self._text_base(META)
        return total

    def data(self, first: int, last: int) -> list[bytes]:
        """Return the payloads of rows [first, last)."""
        return slices(self.frame, self._text_base(DATA), self._offsets(DATA, first, last))

    def tags(self, first: int, last: int) -> list[bytes | None] | None:
        """Return the tags of rows [first, last), or None if no row of the source has one."""
        return self._texts(TAG, first, last)

    def nodes(self, first: int, last: int) -> list[bytes | None] | None:
        """Return the nodes of rows [first, last), or None if no row of the source has one."""
        return self._texts(NODE, first, last)

    def metas(self, first: int, last: int) -> list[bytes | None] | None:
        """Return the metas of rows [first, last), or None if no row of the source has one."""
        return self._texts(META, first, last)

    def times(self, first: int, last: int) -> int | list[int]:
        """Return the commit times, or one number if they are all equal."""
        if not self.bits & TS:
            return self.ts
        start, _ = self._at[TS]
        times = array("q", self.frame[start + 8 * first : start + 8 * last])
        return times[0] if times and times[0] == times[-1] else times.tolist()

    def weights(self, first: int, last: int) -> Sequence[int]:
        """Return running totals of payload bytes, not necessarily from 0."""
        totals = self._offsets(DATA, first, last)
        if self.bits & META:
            return list(map(add, totals, self._offsets(META, first, last)))
        return totals

    def weight(self, first: int, last: int) -> int:
        """Return the payload bytes of rows [first, last)."""
        size = self._text_bytes(DATA, first, last)
        return size + self._text_bytes(META, first, last) if self.bits & META else size

    def _text_bytes(self, bit: int, first: int, last: int) -> int:
        start = self._offsets_at(bit)
        (begin,), (end,) = _OFFSET(self.frame, start + 4 * first), _OFFSET(self.frame, start + 4 * last)
        return int(end - begin)

    def tag_bytes(self) -> bytes:
        """Return all tags back to back, for a search that excludes whole blocks."""
        if not self.bits & TAG:
            return b""
        start, size = self._at[TAG]
        return self.frame[self._text_base(TAG) : start + size]

    def rows(self) -> Rows:
        """Return a copy of the rows as columns of their own."""
        return Rows(
            self._copy(DATA),
            tag=self._copy(TAG) if self.bits & TAG else None,
            node=self._copy(NODE) if self.bits & NODE else None,
            meta=self._copy(META) if self.bits & META else None,
            batch_node=self.batch_node,
        )

    def span(self, bit: int) -> tuple[int, int]:
        """Return start and size of a column in the frame. Data has bit 0."""
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
    """Whether the bitmap has a bit for every row."""
    whole, rest = divmod(count, 8)
    return valid.count(255, 0, whole) == whole and (not rest or valid[whole] & ((1 << rest) - 1) == (1 << rest) - 1)
