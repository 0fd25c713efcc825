"""The only way for other programs to read segment files: rows as Arrow batches, without deleted rows.

The server sets delete flags in sealed files some time after the delete. So a caller passes how many live rows the
server counted. A file with another number raises FileChangedError: its rows must come from the server. Every frame is
verified as in the server; a damaged one raises one of `UNREADABLE`.

A hot segment is read with `pread`, one block at a time, and batches refer to the bytes that were read. A mapped file
would not do: where the disk fails, the process would get SIGBUS and die instead of an error.
"""

import os
from collections.abc import Iterator
from itertools import compress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from driftq.storage.blocks.block import Block
from driftq.storage.blocks.block_arrow import block_arrays
from driftq.storage.blocks.delete_flags import DELETED, FLAGS_TO_DELETED, FLAGS_TO_LIVE
from driftq.storage.segments.block_index import BlockIndex, decode_index
from driftq.storage.segments.cold_file import ColdDamagedError, ColdFile
from driftq.storage.segments.hot_store import BlockDamagedError, verified
from driftq.system.disk import OsDisk

UNREADABLE = (OSError, ValueError, BlockDamagedError, ColdDamagedError, pa.ArrowException)


class FileChangedError(Exception):
    """The file does not have the rows that the server reported for it."""


class SegmentFile:
    """A sealed segment in a hot or cold tier: its path, its live rows, and the topic's earliest seq, as planned."""

    __slots__ = ("earliest", "live", "path")

    def __init__(self, path: Path, live: int, earliest: int) -> None:
        self.path = path
        self.live = live
        self.earliest = earliest

    def hot_batches(self, first: int, last: int, schema: Any) -> Iterator[Any]:
        """Yield the live rows from `first` to `last` of a hot segment, one batch per block."""
        index = decode_index(self.path.with_suffix(".idx").read_bytes())
        if index is None:
            raise FileChangedError
        with self.path.open("rb", buffering=0) as file:
            descriptor = file.fileno()
            if _live(descriptor, index, self.earliest) != self.live:
                raise FileChangedError
            yield from _blocks(descriptor, index, first, last, schema)

    def cold_batches(self, first: int, last: int, schema: Any) -> Iterator[Any]:
        """Yield the live rows from `first` to `last` of a cold segment, one batch per row group."""
        names = list(schema.names)
        described, flags = self.cold_flags()
        row = 0
        with pq.ParquetFile(self.path) as file:
            for number, group in enumerate(described.groups):
                low, high = max(first - group.first_seq, 0), min(last - group.first_seq + 1, group.count)
                if low < high:
                    table = file.read_row_group(number, columns=names, use_threads=False).select(names)
                    batch = table.cast(schema).combine_chunks().to_batches()[0].slice(low, high - low)
                    dead = flags[row + low : row + high]
                    if dead.count(DELETED):
                        batch = batch.filter(pa.array([bool(alive) for alive in dead.translate(FLAGS_TO_LIVE)]))
                    if batch.num_rows:
                        yield batch
                row += group.count

    def cold_flags(self) -> tuple[ColdFile, bytes]:
        """Return a cold segment and its delete flags. Raise FileChangedError or one of `UNREADABLE`."""
        file = ColdFile.open(OsDisk(), str(self.path), self.path.with_suffix(".del").read_bytes())
        if file is None:
            raise FileChangedError
        flags = file.flags()
        live = row = 0
        for group in file.groups:
            kept = max(0, min(group.count, self.earliest - group.first_seq))
            live += group.count - kept - flags.count(DELETED, row + kept, row + group.count)
            row += group.count
        if live != self.live:
            raise FileChangedError
        return file, flags

    def dead_seqs(self) -> list[int]:
        """Return the deleted seqs of a cold segment. Raise FileChangedError or one of `UNREADABLE`."""
        file, flags = self.cold_flags()
        found: list[int] = []
        row = 0
        for group in file.groups:
            if flags.count(DELETED, row, row + group.count):
                dead = flags[row : row + group.count].translate(FLAGS_TO_DELETED)
                found += compress(range(group.first_seq, group.first_seq + group.count), dead)
            row += group.count
        return found


def _read(descriptor: int, size: int, offset: int) -> bytes:
    """Return this range of a file. Raises FileChangedError if the file is shorter."""
    content = os.pread(descriptor, size, offset)
    while len(content) < size:
        more = os.pread(descriptor, size - len(content), offset + len(content))
        if not more:
            raise FileChangedError
        content += more
    return content


def _live(descriptor: int, index: BlockIndex, earliest: int) -> int:
    """Return the number of live rows that the file shows."""
    total = 0
    for block in range(len(index)):
        offset, length = index.place(block)
        count = index.count(block)
        gone = max(0, min(count, earliest - index.first_seq(block)))
        flags = _read(descriptor, count - gone, offset + length - count + gone)
        total += count - gone - flags.count(DELETED)
    return total


def _blocks(descriptor: int, index: BlockIndex, first: int, last: int, schema: Any) -> Iterator[Any]:
    for number in range(index.at_or_after(first), len(index)):
        first_seq, count = index.first_seq(number), index.count(number)
        if first_seq > last:
            return
        offset, length = index.place(number)
        block = verified(_read(descriptor, length, offset), first_seq, count)
        low, high = max(first - first_seq, 0), min(last - first_seq + 1, count)
        batch = _batch(block, schema)
        flags = bytes(block.flags[low:high])
        if flags.count(DELETED):
            yield batch.take(pa.array(list(compress(range(low, high), flags.translate(FLAGS_TO_LIVE))), pa.uint32()))
        else:
            yield batch if high - low == count else batch.slice(low, high - low)


def _batch(block: Block, schema: Any) -> Any:
    """Return the columns of a block that the schema names."""
    count = block.count
    arrays: dict[str, Any] = dict(block_arrays(block))
    columns = []
    for field in schema:
        name = field.name
        if name == "seq":
            columns.append(pa.arange(block.first_seq, block.first_seq + count))
        elif name == "ts":
            columns.append(arrays["ts"].cast(field.type) if name in arrays else _repeated(block.ts, count, field.type))
        elif name in arrays:
            columns.append(arrays[name])
        elif name == "node" and block.batch_node is not None:
            columns.append(pa.repeat(pa.scalar(bytes(block.batch_node).decode(), pa.utf8()), count))
        else:
            columns.append(pa.nulls(count, pa.utf8()))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _repeated(ms: int, count: int, time: Any) -> Any:
    """Return one time of a block as a column of `count` microsecond times."""
    return pa.repeat(pa.scalar(1000 * ms, pa.int64()), count).view(time)
