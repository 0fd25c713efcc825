"""What Spark's checkpoint of a query says: who the query is, and where each of its batches ends.

<checkpoint>/metadata       {"id": …}, the same after every restart
<checkpoint>/offsets/<n>    a version line, a line of metadata, and one line for each source: its offset
"""

from pathlib import Path

from msgspec import Struct, json


class Place(Struct, frozen=True):
    """Where a batch ends in a topic."""

    epoch: int
    seq: int


class _Metadata(Struct):
    id: str


def query_id(checkpoint: Path) -> str:
    """The id of the query."""
    return json.decode((checkpoint / "metadata").read_bytes(), type=_Metadata).id


def end_of_batch(checkpoint: Path, batch: int) -> dict[str, Place]:
    """Where a batch ends, as it was noted before the batch began. The query has one source."""
    lines = (checkpoint / "offsets" / str(batch)).read_bytes().splitlines()
    return json.decode(lines[2], type=dict[str, Place])
