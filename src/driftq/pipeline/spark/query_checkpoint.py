"""What Spark's checkpoint of a query says: who the query is, and what each of its batches reads.

<checkpoint>/metadata       {"id": …}, the same after every restart
<checkpoint>/offsets/<n>    a version line, a line of metadata, and one line for each source: its offset

Over Spark Connect this runs in the server, where it has come by value: no structs of msgspec, which do not.
"""

import json
from pathlib import Path

from driftq.pipeline.offsets import OffsetRange, Places, decode, ranges


def query_id(checkpoint: Path) -> str:
    """The id of the query."""
    return str(json.loads((checkpoint / "metadata").read_bytes())["id"])


def has_begun(checkpoint: Path) -> bool:
    """Was a batch planned? From then on Spark knows where the query began."""
    return any((checkpoint / "offsets").glob("[0-9]*"))


def ranges_of_batch(checkpoint: Path, batch: int) -> dict[str, OffsetRange]:
    """What a batch reads of each topic, as it was noted before the batch began. The query has one source."""
    before = _end(checkpoint, batch - 1) if batch else {}
    return {part.topic: part for part in ranges(before, _end(checkpoint, batch))}


def _end(checkpoint: Path, batch: int) -> Places:
    lines = (checkpoint / "offsets" / str(batch)).read_bytes().splitlines()
    return decode(json.loads(lines[2]))
