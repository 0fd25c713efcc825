"""Reads Spark's checkpoint of a query: the id of the query, and the ranges that each batch reads.

    <checkpoint>/metadata       {"id": …}, the same after every restart
    <checkpoint>/offsets/<n>    a version line, a line of metadata, and one line per source: its offset

With Spark Connect this code runs in the Connect server, pickled by value. So it uses no msgspec structs, which cannot
be pickled by value.
"""

import json
from pathlib import Path

from driftq.pipeline.offsets import OffsetRange, Places, decode, ranges


def query_id(checkpoint: Path) -> str:
    """Return the id of the query, which survives restarts."""
    return str(json.loads((checkpoint / "metadata").read_bytes())["id"])


def has_begun(checkpoint: Path) -> bool:
    """Whether a batch was planned. From then on the checkpoint has the start offset of the query."""
    return any((checkpoint / "offsets").glob("[0-9]*"))


def ranges_of_batch(checkpoint: Path, batch: int) -> dict[str, OffsetRange]:
    """Return the range of each topic in a batch, as Spark wrote it before the batch began. The query has one source."""
    before = _end(checkpoint, batch - 1) if batch else {}
    return {part.topic: part for part in ranges(before, _end(checkpoint, batch))}


def last_ends(checkpoint: Path) -> Places:
    """Return the end of the last batch that is done, by topic; nothing if there is none or it cannot be read."""
    done = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")]
    try:
        return _end(checkpoint, max(done)) if done else {}
    except (OSError, ValueError, IndexError):
        return {}


def _end(checkpoint: Path, batch: int) -> Places:
    lines = (checkpoint / "offsets" / str(batch)).read_bytes().splitlines()
    return decode(json.loads(lines[2]))
