"""The open block: the newest rows of a topic, still growing, not yet a block.

Small writes are gathered here, so that memory and segments hold blocks of up to 1024 rows instead of frames of one. It
has the same interface as a `Block`. Invariant: a column that exists has an entry for every row.
"""

from array import array
from collections.abc import Sequence
from operator import add

from driftq.storage.blocks.block import encode_block, slices
from driftq.storage.blocks.delete_flags import DELETED
from driftq.storage.blocks.rows import Rows, Texts, bitmap, is_plain, offsets_of, partition_column, shifted


class _Column:
    """A growing column of texts. Once some row has no value, `present` has a byte per row."""

    __slots__ = ("data", "offsets", "present")

    def __init__(self, missing: int) -> None:
        self.data = bytearray()
        self.offsets = array("i", bytes(4 * (missing + 1)))
        self.present: bytearray | None = bytearray(missing) if missing else None

    def extend(self, texts: Texts) -> None:
        """Add the rows of another column."""
        offsets = texts.offsets
        if texts.valid is not None:
            self._spell_out().extend(partition_column(texts.valid, len(offsets) - 1))
        elif self.present is not None:
            self.present.extend(b"\x01" * (len(offsets) - 1))
        base = len(self.data)
        self.data += texts.data
        if len(offsets) == 2:
            self.offsets.append(len(self.data))
        else:
            self.offsets.frombytes(shifted(offsets, base))

    def append(self, value: bytes) -> None:
        """Add one row with a value."""
        self.data += value
        self.offsets.append(len(self.data))
        if self.present is not None:
            self.present.append(1)

    def skip(self, rows: int) -> None:
        """Add rows without a value."""
        self._spell_out().extend(bytes(rows))
        self.offsets.extend([len(self.data)] * rows)

    def frozen(self) -> Texts:
        """Return an immutable copy of the column."""
        valid = None if self.present is None else bitmap(self.present)
        return Texts(bytes(self.data), self.offsets[:], valid)

    def values(self, first: int, last: int) -> list[bytes]:
        """Return the texts of rows [first, last); empty for rows without a value."""
        offsets = self.offsets[first : last + 1].tolist()
        base = offsets[0]
        return slices(bytes(self.data[base : offsets[-1]]), -base, offsets)

    def optional(self, first: int, last: int) -> list[bytes | None]:
        """Return the texts of rows [first, last); None for rows without a value."""
        values = self.values(first, last)
        if self.present is None:
            return values  # type: ignore[return-value]
        return [value if here else None for value, here in zip(values, self.present[first:last], strict=True)]

    def _spell_out(self) -> bytearray:
        if self.present is None:
            self.present = bytearray(b"\x01" * (len(self.offsets) - 1))
        return self.present


def _emptied(texts: Texts, flags: bytes) -> Texts:
    """Return a column in which the rows that are flagged as deleted are empty."""
    data, offsets = texts.data, texts.offsets
    values = [b"" if flag == DELETED else data[offsets[row] : offsets[row + 1]] for row, flag in enumerate(flags)]
    return Texts(b"".join(values), offsets_of(map(len, values)), texts.valid)


class OpenBlock:
    """Rows from `first_seq` on, each with its commit time."""

    __slots__ = ("_data", "_meta", "_node", "_plain", "_tag", "_times", "count", "first_seq", "payload_bytes")

    def __init__(self, first_seq: int) -> None:
        self.first_seq = first_seq
        self.count = 0
        self.payload_bytes = 0
        self._data = _Column(0)
        self._tag: _Column | None = None
        self._node: _Column | None = None
        self._meta: _Column | None = None
        self._times = array("q")
        self._plain = True

    def extend(self, rows: Rows, ts: int, times: "array[int] | None" = None) -> None:
        """Add the rows of one write after the others. `times` is given if their commit times differ."""
        count = rows.count
        self._data.extend(rows.data)
        if self._tag is not None or rows.tag is not None:
            self._tag = self._grown(self._tag, rows.tag, count)
            self._plain = self._plain and (rows.tag is None or is_plain(rows.tag.data))
        if self._meta is not None or rows.meta is not None:
            self._meta = self._grown(self._meta, rows.meta, count)
        if self._node is not None or rows.node is not None or rows.batch_node is not None:
            node = rows.node if rows.batch_node is None else Texts.of([rows.batch_node] * count)
            self._node = self._grown(self._node, node, count)
            self._plain = self._plain and (node is None or is_plain(node.data))
        if times is not None:
            self._times.extend(times)
        elif count == 1:
            self._times.append(ts)
        else:
            self._times.extend(array("q", (ts,)) * count)
        self.count += count
        self.payload_bytes += rows.payload_bytes

    def append(self, data: bytes, tag: bytes | None, ts: int) -> None:
        """Add one row that has only data and perhaps a tag, as replay reads it (`frame_columns.read_one`).

        Does the same as `extend`, but faster.
        """
        column = self._data
        column.data += data
        column.offsets.append(len(column.data))
        if tag is not None:
            if self._tag is None:
                self._tag = _Column(self.count)
            self._tag.append(tag)
            self._plain = self._plain and is_plain(tag)
        elif self._tag is not None:
            self._tag.skip(1)
        if self._node is not None:
            self._node.skip(1)
        if self._meta is not None:
            self._meta.skip(1)
        self._times.append(ts)
        self.count += 1
        self.payload_bytes += len(data)

    def _grown(self, column: _Column | None, texts: Texts | None, count: int) -> _Column:
        """Return a column with the next rows added. A new column has no values for the earlier rows."""
        if column is None:
            column = _Column(self.count)
        if texts is None:
            column.skip(count)
        else:
            column.extend(texts)
        return column

    @property
    def ts(self) -> int:
        """Return the commit time of the first row."""
        return self._times[0]

    @property
    def last_ts(self) -> int:
        """Return the commit time of the last row."""
        return self._times[-1]

    @property
    def plain(self) -> bool:
        """Whether no tag or node needs escaping in JSON."""
        return self._plain

    @property
    def batch_node(self) -> bytes | None:
        """Return None: rows of several writes do not share a node."""
        return None

    def data(self, first: int, last: int) -> list[bytes]:
        """Return the payloads of rows [first, last)."""
        return self._data.values(first, last)

    def tags(self, first: int, last: int) -> list[bytes | None] | None:
        """Return the tags of rows [first, last), or None if no row of the source has one."""
        return None if self._tag is None else self._tag.optional(first, last)

    def nodes(self, first: int, last: int) -> list[bytes | None] | None:
        """Return the nodes of rows [first, last), or None if no row of the source has one."""
        return None if self._node is None else self._node.optional(first, last)

    def metas(self, first: int, last: int) -> list[bytes | None] | None:
        """Return the metas of rows [first, last), or None if no row of the source has one."""
        return None if self._meta is None else self._meta.optional(first, last)

    def times(self, first: int, last: int) -> int | list[int]:
        """Return the commit times, or one number if they are all equal."""
        times = self._times[first:last]
        return times[0] if times and times[0] == times[-1] else times.tolist()

    def weights(self, first: int, last: int) -> Sequence[int]:
        """Return running totals of payload bytes, not necessarily from 0."""
        totals = self._data.offsets[first : last + 1].tolist()
        if self._meta is None:
            return totals
        return list(map(add, totals, self._meta.offsets[first : last + 1]))

    def weight(self, first: int, last: int) -> int:
        """Return the payload bytes of rows [first, last)."""
        size = self._data.offsets[last] - self._data.offsets[first]
        return size if self._meta is None else size + self._meta.offsets[last] - self._meta.offsets[first]

    def tag_bytes(self) -> bytes:
        """Return all tags back to back, for a search that excludes whole blocks."""
        return b"" if self._tag is None else bytes(self._tag.data)

    def rows(self) -> Rows:
        """Return an immutable copy of all rows."""
        return Rows(
            self._data.frozen(),
            tag=None if self._tag is None else self._tag.frozen(),
            node=None if self._node is None else self._node.frozen(),
            meta=None if self._meta is None else self._meta.frozen(),
        )

    def encode(self, topic_id: int, flags: bytes = b"", *, empties: bool = False) -> bytes:
        """Return the Append frame of all rows. It has a column of times only if they differ.

        With `empties`, data and meta of rows that are flagged as deleted are empty.
        """
        same = self._times[0] == self._times[-1]
        rows = self.rows()
        if empties:
            meta = None if rows.meta is None else _emptied(rows.meta, flags)
            rows = Rows(_emptied(rows.data, flags), tag=rows.tag, node=rows.node, meta=meta)
        return encode_block(
            rows,
            topic_id=topic_id,
            first_seq=self.first_seq,
            ts=self._times[0],
            times=None if same else self._times,
            flags=flags,
        )
