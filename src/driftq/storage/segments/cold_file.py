"""A cold segment: a sealed segment as one Parquet file that any program can read, and a file with its delete flags.

`.parquet` has the columns of `storage.blocks.block_arrow.record_schema`, zstd pages, no dictionaries, row groups of up
to 16 384 rows or 8 MiB. A row group ends where seqs jump, so each is contiguous and is read back as one `Block`. The
footer's key-value metadata names the topic of the records and, per row group, has what an index needs and a checksum of
its bytes:

    driftq.format "2"      driftq.topic_id      driftq.first_seq      driftq.groups: JSON, one array per row group
    [first_seq, count, first_ts, last_ts, payload bytes, first byte, byte after the last, XXH3-64 of these bytes]
    driftq.tags: JSON, the tags of each row group (`storage/segments/tag_codes`); files of format 1 do not have it

`.del` has one flag byte per row in the order of the file, as in frames (0xD5 = deleted, anything else = live):

    0   4  magic "DQD", version     4   4  count n
    8   8  XXH3-64 of the Parquet footer: the file's last footer_len + 8 bytes
    16  8  XXH3-64 of bytes 0..16
    24  n  flags, outside any checksum: deleting row r is a write of one byte at 24 + r

Invariant: the Parquet decoder gets only bytes whose checksum is right. The chain is `.del` header, footer, row groups.
A wrong checksum raises `ColdDamagedError`, a failed read stays an `OSError`, and a newer version raises
`NewerFormatError`. See `docs/formats/cold.md`.
"""

import errno
import os
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import chain
from struct import Struct as Layoutter
from typing import Protocol

from msgspec import DecodeError, Struct, json
from xxhash import xxh3_64_intdigest

from driftq.storage.blocks.block import Block, encode_block
from driftq.storage.blocks.block_arrow import Array, ArrowBatch, block_batch, record_schema
from driftq.storage.blocks.rows import Rows, Texts
from driftq.storage.format_version import newer
from driftq.storage.segments.tag_codes import TagCodes, decode_codes, tag_codes
from driftq.system.disk import Disk, File

# long: one format, written, read and salvaged, to be read next to its page

GROUP_ROWS_MAX = 16_384
GROUP_BYTES_MAX = 8 << 20
DEL_MAGIC = b"DQD\x01"
DEL_HEADER_BYTES = 24
FORMAT = 2
_READ = (1, FORMAT)
_TAGS_SINCE = 2
_DEL = Layoutter("<4sIQ")
_SUM = Layoutter("<Q")
_PARQUET_MAGIC = b"PAR1"
_TAIL = Layoutter("<I4s")
_TAIL_GUESS = 64 << 10
"""One read of this many bytes finds nearly every footer."""
_WITHOUT_SEQ = ["ts", "node", "tag", "meta", "data"]


class ColdDamagedError(Exception):
    """A cold segment is damaged. It is reported and isolated; its rows are never returned."""


class RowGroup(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One row group: contiguous seqs with the fields of a block index, and the position of its bytes."""

    first_seq: int
    count: int
    first_ts: int
    last_ts: int
    payload_bytes: int
    start: int
    end: int
    checksum: int


class _Metadata(Protocol):
    """The parts of a `pyarrow.parquet.FileMetaData` that are used here."""

    @property
    def metadata(self) -> dict[bytes, bytes] | None: ...

    @property
    def num_row_groups(self) -> int: ...


_groups = json.Decoder(list[RowGroup], strict=True)


def encode_parquet(blocks: Sequence[Block], *, topic_id: int, version: int = FORMAT) -> bytes:
    """Return the `.parquet` file of a segment's blocks, in order of their seqs. Slow, but mostly without the GIL.

    `version` differs from the current one only to compare with a file of an earlier version.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = BytesIO()
    writer = pq.ParquetWriter(
        sink,
        record_schema(),
        compression="zstd",
        use_dictionary=False,
        column_encoding={"seq": "DELTA_BINARY_PACKED", "ts": "DELTA_BINARY_PACKED"},
        write_statistics=["seq", "ts", "node", "tag"],
        store_schema=False,
    )
    groups = []
    tags = []
    for pieces in _plan(blocks):
        start = sink.tell()
        table = pa.Table.from_batches([piece.batch() for piece in pieces], schema=record_schema())
        writer.write_table(table, row_group_size=table.num_rows)
        groups.append(_group(pieces, sink, start))
        tags.append(tag_codes(chain.from_iterable(piece.tags() for piece in pieces)))
    described = {
        "driftq.format": str(version),
        "driftq.topic_id": str(topic_id),
        "driftq.first_seq": str(blocks[0].first_seq),
        "driftq.groups": json.encode(groups),
    }
    writer.add_key_value_metadata(described | ({"driftq.tags": json.encode(tags)} if version >= _TAGS_SINCE else {}))
    writer.close()
    return sink.getvalue()


class _Piece:
    """Rows of a block that go into one row group."""

    __slots__ = ("block", "first", "last", "payload_bytes")

    def __init__(self, block: Block, first: int, last: int, payload_bytes: int) -> None:
        self.block = block
        self.first = first
        self.last = last
        self.payload_bytes = payload_bytes

    def batch(self) -> ArrowBatch:
        """Return these rows as an Arrow batch."""
        return block_batch(self.block).slice(self.first, self.last - self.first)

    def tags(self) -> Sequence[bytes | None]:
        """Return the tags of these rows."""
        return self.block.tags(self.first, self.last) or [None] * (self.last - self.first)

    def ts(self, row: int) -> int:
        """Return the commit time of a row."""
        times = self.block.times(row, row + 1)
        return times if isinstance(times, int) else times[0]


def _plan(blocks: Sequence[Block]) -> list[list[_Piece]]:
    """Assign rows to row groups. The last record of a group may exceed the group's limit of bytes."""
    groups: list[list[_Piece]] = []
    rows = payload = next_seq = 0
    for block in blocks:
        weights = block.weights(0, block.count)
        first = 0
        while first < block.count:
            if block.first_seq + first != next_seq or rows >= GROUP_ROWS_MAX or payload >= GROUP_BYTES_MAX:
                groups.append([])
                rows = payload = 0
            room = bisect_right(weights, weights[first] + GROUP_BYTES_MAX - payload) - 1
            last = min(block.count, first + GROUP_ROWS_MAX - rows, max(room, first + 1))
            size = weights[last] - weights[first]
            groups[-1].append(_Piece(block, first, last, size))
            rows += last - first
            payload += size
            next_seq = block.first_seq + last
            first = last
    return groups


def _group(pieces: Sequence[_Piece], sink: BytesIO, start: int) -> RowGroup:
    """Return the footer's entry for the row group that was just written."""
    begin, end = pieces[0], pieces[-1]
    with sink.getbuffer() as written:
        checksum = xxh3_64_intdigest(written[start:])
    return RowGroup(
        first_seq=begin.block.first_seq + begin.first,
        count=sum(piece.last - piece.first for piece in pieces),
        first_ts=begin.ts(begin.first),
        last_ts=end.ts(end.last - 1),
        payload_bytes=sum(piece.payload_bytes for piece in pieces),
        start=start,
        end=sink.tell(),
        checksum=checksum,
    )


def encode_del(flags: bytes, parquet: bytes) -> bytes:
    """Return the `.del` file that belongs to this `.parquet` file."""
    header = _DEL.pack(DEL_MAGIC, len(flags), xxh3_64_intdigest(parquet[-_footer_bytes(parquet) :]))
    return b"".join((header, _SUM.pack(xxh3_64_intdigest(header)), flags))


def _named_footer(content: bytes) -> int | None:
    """Return the checksum of the footer that a `.del` belongs to, or None if its header is damaged."""
    if len(content) < DEL_HEADER_BYTES:
        return None
    magic, _, footer_sum = _DEL.unpack_from(content)
    (header_sum,) = _SUM.unpack_from(content, _DEL.size)
    sound = magic[:3] == DEL_MAGIC[:3] and xxh3_64_intdigest(content[: _DEL.size]) == header_sum
    return int(footer_sum) if sound else None


def _decode_del(content: bytes) -> tuple[int, bytes] | None:
    """Return the footer's checksum and the flags, or None if anything is damaged. Raises NewerFormatError."""
    footer_sum = _named_footer(content)
    if footer_sum is None:
        return None
    magic, count, _ = _DEL.unpack_from(content)
    if magic != DEL_MAGIC:
        raise newer(f"a .del file of format version {magic[3]}", "")
    flags = content[DEL_HEADER_BYTES:]
    return (footer_sum, flags) if len(flags) == count else None


def _footer_bytes(tail: bytes) -> int:
    """Return the size of the footer with its length and magic, from a file's last bytes."""
    if len(tail) < _TAIL.size:
        raise ColdDamagedError("a cold segment is too short")
    size, magic = _TAIL.unpack_from(tail, len(tail) - _TAIL.size)
    if magic != _PARQUET_MAGIC:
        raise ColdDamagedError("a cold segment does not end like a Parquet file")
    return int(size) + _TAIL.size


class ColdFile:
    """An opened cold segment: its row groups, and their rows on demand. Holds no file handle; safe to share."""

    __slots__ = ("_disk", "_flags", "_metadata", "_path", "_size", "count", "groups", "topic_id")

    def __init__(self, disk: Disk, path: str, size: int, metadata: _Metadata, flags: bytes) -> None:
        self._disk = disk
        self._path = path
        self._size = size
        self._metadata = metadata
        self._flags = flags
        self.topic_id, self.groups = _described(metadata)
        self.count = sum(group.count for group in self.groups)
        """Rows of all groups, deleted ones included."""
        if self.count != len(flags):
            raise ColdDamagedError(f"{path} has {self.count} records and {len(flags)} delete flags")

    @staticmethod
    def open(disk: Disk, path: str, del_content: bytes) -> "ColdFile | None":
        """Open a pair: the path of its `.parquet`, the content of its `.del`.

        Returns None if `.del` is damaged or belongs to other Parquet bytes: which of the two files is wrong is not
        known. Raises ColdDamagedError if the footer is damaged, NewerFormatError, and OSError.
        """
        file = disk.open(path)
        try:
            size = file.size()
            footer = _read_footer(file, size)
        finally:
            file.close()
        flags = _decode_del(del_content)
        if flags is None or xxh3_64_intdigest(footer) != flags[0]:
            return None
        return ColdFile(disk, path, size, _parse_footer(footer), flags[1])

    @staticmethod
    def open_alone(disk: Disk, path: str, del_content: bytes, others: Iterable[bytes] = ()) -> "ColdFile":
        """Open a `.parquet` without a matching `.del`, to save what can be read of it.

        The flags come from the `.del` that has the checksum of this footer: its own or one of `others`. Otherwise its
        own flags are used if there is one per record and its header is damaged or has the checksum of the footer that
        these records would get. Flags of another file are never used: then every record is live. Row groups are still
        checked when they are read. Raises ColdDamagedError, NewerFormatError and OSError.
        """
        file = disk.open(path)
        try:
            size = file.size()
            footer = _read_footer(file, size)
        finally:
            file.close()
        metadata = _parse_footer(footer)
        count = sum(group.count for group in _described(metadata)[1])
        for content in chain((del_content,), others):
            if _named_footer(content) == xxh3_64_intdigest(footer) and len(content) == DEL_HEADER_BYTES + count:
                return ColdFile(disk, path, size, metadata, content[DEL_HEADER_BYTES:])
        flags = del_content[DEL_HEADER_BYTES:]
        live = ColdFile(disk, path, size, metadata, bytes(count))
        named = _named_footer(del_content)
        if len(flags) != count or (named is not None and named != live._footer_of_records()):
            return live
        return ColdFile(disk, path, size, metadata, flags)

    def _footer_of_records(self) -> int | None:
        """Return the checksum of the footer that a file of these records gets, or None if some cannot be read."""
        try:
            blocks = [self.read_group(number) for number in range(len(self.groups))]
        except (ColdDamagedError, OSError):
            return None
        version = int((self._metadata.metadata or {})[b"driftq.format"])
        return _named_footer(encode_del(b"", encode_parquet(blocks, topic_id=self.topic_id, version=version)))

    @property
    def first_seq(self) -> int:
        """Return the seq of the first record."""
        return self.groups[0].first_seq

    def flags(self) -> bytes:
        """Return the delete flags of all rows as they were when the segment was opened."""
        return self._flags

    def tag_codes(self) -> list[TagCodes | None]:
        """Return the tags of each row group from the footer; None for a group that has none there."""
        content = (self._metadata.metadata or {}).get(b"driftq.tags")
        found = None if content is None else decode_codes(content)
        return found if found is not None and len(found) == len(self.groups) else [None] * len(self.groups)

    def read_group(self, number: int) -> Block:
        """Return the rows of one group as a block. May wait for the device. Raises ColdDamagedError or OSError."""
        group = self.groups[number]
        file = self._disk.open(self._path)
        try:
            content = file.pread(group.end - group.start, group.start)
        finally:
            file.close()
        if len(content) != group.end - group.start or xxh3_64_intdigest(content) != group.checksum:
            last_seq = group.first_seq + group.count - 1
            raise ColdDamagedError(f"the row group of seqs {group.first_seq}..{last_seq} of {self._path} is damaged")
        columns = _decode_group(self._metadata, number, content, group.start, self._size)
        times = _times(columns["ts"])
        node, batch_node = _nodes(_texts(columns["node"]))
        data = _texts(columns["data"])
        if data is None or data.count != group.count or data.valid is not None:
            raise ColdDamagedError(f"row group {number} of {self._path} does not have the rows that the footer lists")
        first_row = sum(earlier.count for earlier in self.groups[:number])
        frame = encode_block(
            Rows(data, node=node, batch_node=batch_node, tag=_texts(columns["tag"]), meta=_texts(columns["meta"])),
            topic_id=self.topic_id,
            first_seq=group.first_seq,
            ts=times[0],
            times=None if times.count(times[0]) == len(times) else times,
            flags=self._flags[first_row : first_row + group.count],
        )
        return Block.of(frame)


def _read_footer(file: File, size: int) -> bytes:
    """Return the footer with its length and magic."""
    tail = file.pread(min(size, _TAIL_GUESS), max(0, size - _TAIL_GUESS))
    wanted = _footer_bytes(tail)
    if wanted > size:
        raise ColdDamagedError("a cold segment's footer is longer than its file")
    if wanted > len(tail):
        tail = file.pread(wanted, size - wanted)
        if len(tail) != wanted:
            raise ColdDamagedError("a cold segment became shorter while it was read")
    return tail[-wanted:]


def _described(metadata: _Metadata) -> tuple[int, list[RowGroup]]:
    """Return topic id and row groups from the key-value metadata."""
    said = metadata.metadata or {}
    try:
        version = int(said[b"driftq.format"])
        if version not in _READ:
            raise newer(f"a cold segment of format version {version}", "")
        topic_id = int(said[b"driftq.topic_id"])
        groups = _groups.decode(said[b"driftq.groups"])
    except (KeyError, ValueError, DecodeError) as error:
        raise ColdDamagedError(f"a cold segment's footer has no valid description: {error}") from error
    if not groups or len(groups) != metadata.num_row_groups:
        raise ColdDamagedError("a cold segment's footer lists other row groups than the file has")
    return topic_id, groups


def _parse_footer(footer: bytes) -> _Metadata:
    """Parse a footer whose checksum was verified. Raises ColdDamagedError and OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata: _Metadata = pq.read_metadata(pa.BufferReader(_PARQUET_MAGIC + footer))
    except MemoryError as error:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from error
    except (pa.ArrowException, OSError) as error:
        raise ColdDamagedError(f"a cold segment's footer cannot be read: {error}") from error
    return metadata


def _decode_group(metadata: _Metadata, number: int, content: bytes, start: int, size: int) -> dict[str, Array]:
    """Return the columns of one row group from its verified bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # The decoder counts from the file's first byte. Pages of the buffer that are never touched take no memory.
        whole = pa.allocate_buffer(size)
        memoryview(whole).cast("B")[start : start + len(content)] = content
        file = pq.ParquetFile(pa.BufferReader(whole), metadata=metadata, pre_buffer=False)
        table = file.read_row_group(number, columns=_WITHOUT_SEQ, use_threads=False)
        return {name: _one_chunk(table.column(name).chunks) for name in _WITHOUT_SEQ}
    except MemoryError as error:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from error
    except (pa.ArrowException, OSError, KeyError) as error:
        raise ColdDamagedError(f"row group {number} of a cold segment cannot be decoded: {error}") from error


def _one_chunk(chunks: list[Array]) -> Array:
    """Return a column in one chunk."""
    import pyarrow as pa

    array: Array = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
    assert array.offset == 0
    return array


def _texts(column: Array) -> Texts | None:
    """Return a column of texts in the form of a block, or None if no row has a value."""
    count = len(column)
    if column.null_count == count:
        return None
    valid, offsets, text = column.buffers()
    assert offsets is not None
    ends = array("i", offsets.to_pybytes()[: 4 * (count + 1)])
    data = b"" if text is None else text.to_pybytes()[: ends[-1]]
    if valid is None or not column.null_count:
        return Texts(data, ends)
    return Texts(data, ends, valid.to_pybytes()[: (count + 7) >> 3])


def _times(column: Array) -> "array[int]":
    """Return a column of times as an array of milliseconds."""
    numbers = column.buffers()[1]
    assert numbers is not None
    return array("q", numbers.to_pybytes()[: 8 * len(column)])


def _nodes(node: Texts | None) -> tuple[Texts | None, bytes | None]:
    """Return the column of nodes, or the one node that all rows share."""
    if node is None or node.valid is not None:
        return node, None
    first = node[0]
    assert first is not None
    size = len(first)
    evenly = node.offsets == array("i", range(0, size * node.count + 1, size)) if size else not node.data
    return (None, first) if evenly and node.data == first * node.count else (node, None)
