"""Sealed segments read where they are, by a process that sees the server's directories.

Whether it does is checked by the id file of the root, not assumed. The server sets delete flags in files some time
after the delete, so a file is believed only if it shows as many live rows as the server said at planning; otherwise,
and when it is gone, damaged or on a mount that hangs, the rows come from the server (`Elsewhere`), which says whether
they are lost: a file that cannot be read here is never a gap. Frames are verified as the server does.

Columns of a hot segment are not copied: batches are over the mapped file, which is unmapped when the last of them goes.
Sealed files change in nothing but delete flags, and those are copied.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import compress
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from driftq.pipeline.columns import TIME, base_schema
from driftq.pipeline.planning import Piece, Segment, Split
from driftq.seam.disk import OsDisk
from driftq.seam.patience import Patience
from driftq.storage.arrow import block_arrays
from driftq.storage.block import Block
from driftq.storage.cold import ColdDamagedError, ColdFile
from driftq.storage.frame import DELETED
from driftq.storage.segment import BlockIndex, decode_index
from driftq.storage.segment_store import BlockDamagedError, verified

BATCH_ROWS = 16_384
_LIVE = bytes(0 if value == DELETED else 1 for value in range(256))
_DEAD = bytes(1 if value == DELETED else 0 for value in range(256))


_patience = Patience()

UNREADABLE = (OSError, ValueError, BlockDamagedError, ColdDamagedError, pa.ArrowException)


class Elsewhere(Exception):  # noqa: N818  # an answer, not an error
    """These rows cannot be read here."""


@cache
def sees(root: str, server_id: str) -> bool:
    """Does this process see the root of that very server?"""
    mark = Path(root, ".driftq.id")
    try:
        return _patience.call(lambda: mark.read_text(encoding="ascii"), str(mark)).strip() == server_id
    except (OSError, ValueError):
        return False


def read(split: Split, piece: Piece, names: Sequence[str]) -> Iterator[Any]:
    """Base batches of a piece, in order. Raises Elsewhere, at once or behind some of them."""
    segment = piece.segment
    root = None if segment is None else split.hot_root if segment.tier == "hot" else split.cold_root
    if segment is None or root is None or not sees(root, split.server_id):
        raise Elsewhere
    reader = _hot if segment.tier == "hot" else _cold
    path = Path(root, segment.file)
    try:
        _patience.call(path.stat, str(path))
        yield from reader(path, segment, piece, split.earliest, tuple(names))
    except UNREADABLE as error:
        raise Elsewhere from error


def cold_flags(path: Path, segment: Segment, earliest: int) -> tuple[ColdFile, bytes]:
    """A cold segment and its delete flags, if they are what the server said. Raises Elsewhere and what opening does."""
    file = ColdFile.open(OsDisk(), str(path), path.with_suffix(".del").read_bytes())
    if file is None:
        raise Elsewhere
    flags = file.flags()
    live = row = 0
    for group in file.groups:
        kept = max(0, min(group.count, earliest - group.first_seq))
        live += group.count - kept - flags.count(DELETED, row + kept, row + group.count)
        row += group.count
    if live != segment.live:
        raise Elsewhere
    return file, flags


def dead_seqs(file: ColdFile, flags: bytes) -> list[int]:
    """The seqs that the flags of a cold segment say are deleted."""
    found: list[int] = []
    row = 0
    for group in file.groups:
        if flags.count(DELETED, row, row + group.count):
            dead = flags[row : row + group.count].translate(_DEAD)
            found += compress(range(group.first_seq, group.first_seq + group.count), dead)
        row += group.count
    return found


def _hot(path: Path, segment: Segment, piece: Piece, earliest: int, names: tuple[str, ...]) -> Iterator[Any]:
    index = decode_index(path.with_suffix(".idx").read_bytes())
    if index is None:
        raise Elsewhere
    with path.open("rb") as file:
        content = mmap(file.fileno(), 0, access=ACCESS_READ)
    if _live(content, index, earliest) != segment.live:
        raise Elsewhere
    yield from _gathered(_blocks(memoryview(content), index, piece, names))


def _live(content: mmap, index: BlockIndex, earliest: int) -> int:
    """Live rows that the file shows."""
    total = 0
    for block in range(len(index)):
        offset, length = index.place(block)
        count = index.count(block)
        gone = max(0, min(count, earliest - index.first_seq(block)))
        flags = content[offset + length - count + gone : offset + length]
        total += count - gone - flags.count(DELETED)
    return total


def _blocks(content: memoryview, index: BlockIndex, piece: Piece, names: tuple[str, ...]) -> Iterator[Any]:
    for number in range(index.at_or_after(piece.first), len(index)):
        first_seq, count = index.first_seq(number), index.count(number)
        if first_seq > piece.last:
            return
        offset, length = index.place(number)
        frame = cast("bytes", content[offset : offset + length])  # storage reads it through the buffer protocol
        block = verified(frame, first_seq, count)
        low, high = max(piece.first - first_seq, 0), min(piece.last - first_seq + 1, count)
        batch = _base(block, names)
        flags = bytes(block.flags[low:high])
        if flags.count(DELETED):
            yield batch.take(pa.array(list(compress(range(low, high), flags.translate(_LIVE))), pa.uint32()))
        else:
            yield batch if high - low == count else batch.slice(low, high - low)


def _base(block: Block, names: tuple[str, ...]) -> Any:
    """The columns of a block that somebody needs."""
    count = block.count
    arrays: dict[str, Any] = dict(block_arrays(block))
    columns = []
    for name in names:
        if name == "seq":
            columns.append(pa.arange(block.first_seq, block.first_seq + count))
        elif name == "ts":
            columns.append(arrays["ts"].cast(TIME) if name in arrays else _all_at(block.ts, count))
        elif name in arrays:
            columns.append(arrays[name])
        elif name == "node" and block.batch_node is not None:
            columns.append(pa.repeat(pa.scalar(bytes(block.batch_node).decode(), pa.utf8()), count))
        else:
            columns.append(pa.nulls(count, pa.utf8()))
    return pa.RecordBatch.from_arrays(columns, schema=base_schema(names))


def _all_at(ms: int, count: int) -> Any:
    """So many times the same time."""
    return pa.repeat(pa.scalar(1000 * ms, pa.int64()), count).view(TIME)


def _gathered(batches: Iterator[Any]) -> Iterator[Any]:
    """Batches of a size that Spark likes."""
    waiting: list[Any] = []
    rows = 0
    for batch in batches:
        if rows + batch.num_rows > BATCH_ROWS and waiting:
            yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
            waiting, rows = [], 0
        if batch.num_rows:
            waiting.append(batch)
            rows += batch.num_rows
    if waiting:
        yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)


def _cold(path: Path, segment: Segment, piece: Piece, earliest: int, names: tuple[str, ...]) -> Iterator[Any]:
    described, flags = cold_flags(path, segment, earliest)
    row = 0
    with pq.ParquetFile(path) as file:
        for number, group in enumerate(described.groups):
            low, high = max(piece.first - group.first_seq, 0), min(piece.last - group.first_seq + 1, group.count)
            if low < high:
                table = file.read_row_group(number, columns=list(names), use_threads=False).select(list(names))
                batch = table.cast(base_schema(names)).combine_chunks().to_batches()[0].slice(low, high - low)
                dead = flags[row + low : row + high]
                if dead.count(DELETED):
                    batch = batch.filter(pa.array([bool(alive) for alive in dead.translate(_LIVE)]))
                if batch.num_rows:
                    yield batch
            row += group.count
