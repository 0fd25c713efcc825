"""Sealing: build the tag indexes of some segments, then make all pairs durable.

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
    index: BlockIndex  # type: ignore[assignment]  # hides tuple.index, which is not used
    blocks: Callable[[], Sequence[Block]]
    """Return the blocks whose tags go into the index. Raises BlockDamagedError or OSError."""


def seal(
    store: SegmentStore, segments: Sequence[UnsealedSegment], *, hurry: bool
) -> list[TagIndex | BlockDamagedError]:
    """Seal segments. Returns for each its tag index, or the damage that prevented it. Raises OSError."""
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
