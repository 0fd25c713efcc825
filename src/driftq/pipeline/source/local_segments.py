"""Reads sealed segment files directly, in a process that sees the server's directories.

The id file of the root shows whether it does. If a file is missing, damaged, different from the server's manifest at
planning, or on a mount that takes too long to answer, `Elsewhere` is raised and the rows come from the server. Only the
server decides whether records are lost: a file that cannot be read here is never a gap.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from driftq.pipeline.source.read_columns import base_schema
from driftq.pipeline.source.split_plan import Piece, PlannedSegment, Split
from driftq.storage.segment_reader import UNREADABLE, FileChangedError, SegmentFile
from driftq.system.hang_guard import Patience

BATCH_ROWS = 16_384

_patience = Patience()


class Elsewhere(Exception):  # noqa: N818  # an answer, not an error
    """These rows cannot be read here; read them from the server."""


@cache
def sees(root: str, server_id: str) -> bool:
    """Whether this process sees the root directory of the server with this id."""
    mark = Path(root, ".driftq.id")
    try:
        return _patience.call(lambda: mark.read_text(encoding="ascii"), str(mark)).strip() == server_id
    except (OSError, ValueError):
        return False


def read(split: Split, piece: Piece, names: Sequence[str]) -> Iterator[Any]:
    """Yield the base batches of a piece, in order. Raises Elsewhere, possibly after some of them."""
    segment = piece.segment
    root = None if segment is None else split.hot_root if segment.tier == "hot" else split.cold_root
    if segment is None or root is None or not sees(root, split.server_id):
        raise Elsewhere
    file = SegmentFile(Path(root, segment.file), segment.live, split.earliest)
    schema = base_schema(tuple(names))
    if segment.tier == "hot":
        batches = _gathered(file.hot_batches(piece.first, piece.last, schema))
    else:
        batches = file.cold_batches(piece.first, piece.last, schema)
    try:
        while (batch := _patience.call(lambda: next(batches, None), str(file.path))) is not None:
            yield batch
    except (FileChangedError, *UNREADABLE) as error:
        raise Elsewhere from error


def dead_seqs(path: Path, segment: PlannedSegment, earliest: int) -> list[int]:
    """Return the deleted seqs of a cold segment. Raises Elsewhere if the file differs from the server's manifest."""
    try:
        return _patience.call(SegmentFile(path, segment.live, earliest).dead_seqs, str(path))
    except (FileChangedError, *UNREADABLE) as error:
        raise Elsewhere from error


def _gathered(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the rows in batches of up to `BATCH_ROWS`, a good size for Spark."""
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
