"""What Spark's checkpoint of a query says: who the query is, and where each of its batches ends.

<checkpoint>/metadata       {"id": …}, the same after every restart
<checkpoint>/offsets/<n>    a version line, a line of metadata, and one line for each source: its offset

Over Spark Connect this runs in the server, where it has come by value: no structs of msgspec, which do not.
"""

import json
from pathlib import Path
from typing import NamedTuple


class Place(NamedTuple):
    """Where a batch ends in a topic."""

    epoch: int
    seq: int


def query_id(checkpoint: Path) -> str:
    """The id of the query."""
    return str(json.loads((checkpoint / "metadata").read_bytes())["id"])


def end_of_batch(checkpoint: Path, batch: int) -> dict[str, Place]:
    """Where a batch ends, as it was noted before the batch began. The query has one source."""
    lines = (checkpoint / "offsets" / str(batch)).read_bytes().splitlines()
    return {topic: Place(place["epoch"], place["seq"]) for topic, place in json.loads(lines[2]).items()}
