"""What a seal is: tag indexes of some segments, then all durable pairs.

A damaged block fails the seal of its own segment only; an I/O error fails the batch.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from driftq.storage.blocks.block import Block
from driftq.storage.segments.block_index import BlockIndex
from driftq.storage.segments.hot_store import BlockDamagedError, Seal, SegmentStore
from driftq.storage.segments.tag_index import TagIndex
from driftq.storage.segments.tag_sort import index_blocks


class UnsealedSegment(NamedTuple):
    """A segment whose blocks are all written."""

    topic_id: int
    first_seq: int
    index: BlockIndex  # type: ignore[assignment]  # hides tuple.index, which nobody asks a segment for
    blocks: Callable[[], Sequence[Block]]
    """Those of its blocks that are to be found by tag. Raises BlockDamagedError or OSError."""


def seal(
    store: SegmentStore, segments: Sequence[UnsealedSegment], *, hurry: bool
) -> list[TagIndex | BlockDamagedError]:
    """Seal them; of each its tag index, or why it is not sealed. Raises OSError."""
    found: list[TagIndex | BlockDamagedError] = []
    for segment in segments:
        try:
            found.append(index_blocks(segment.blocks(), segment.first_seq, hurry=hurry))
        except BlockDamagedError as damage:
            found.append(damage)
    store.seal(
        [
            Seal(segment.topic_id, segment.first_seq, segment.index, tags.encode())
            for segment, tags in zip(segments, found, strict=True)
            if isinstance(tags, TagIndex)
        ]
    )
    return found
