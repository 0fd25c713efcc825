"""A page as one Arrow IPC stream (http-v0 §22.1), made from the columns of blocks without work per row.

There is one batch per block of `BATCH_LEAST` rows or more. Smaller neighbours share a batch, and no batch has more than
`BATCH_MOST` rows. The other fields of a page are text in the metadata of the schema.
"""

from collections.abc import Iterator

from msgspec import json

from driftq.codec.record_json import Fields
from driftq.engine.read.topic_page import Page, Slice
from driftq.storage.blocks.block import Block
from driftq.storage.blocks.block_arrow import ArrowBatch, block_batch, joined, picked, stream_pieces
from driftq.storage.blocks.open_block import OpenBlock

BATCH_LEAST = 500
BATCH_MOST = 16_384


def arrow_pieces(name: str, page: Page, fields: Fields) -> list[bytes]:
    """Return the stream in pieces that must be sent in order."""
    facts = {
        "topic": name,
        "epoch": str(page.epoch),
        "next_from_seq": str(page.next_from_seq),
        "head_seq": str(page.head_seq),
        "earliest_seq": str(page.earliest_seq),
        "caught_up": "true" if page.caught_up else "false",
        "lag": str(page.lag),
        "tombstone": "" if page.tombstone is None else json.encode(page.tombstone).decode(),
    }
    without = [name for name, wanted in (("tag", fields.tags), ("meta", fields.meta)) if not wanted]
    return stream_pieces(list(_batches(page, without)), facts)


def _batches(page: Page, without: list[str]) -> Iterator[ArrowBatch]:
    small: list[ArrowBatch] = []
    rows = 0
    for part in page.slices:
        count = len(part.rows)
        if small and (count >= BATCH_LEAST or rows + count > BATCH_MOST):
            yield joined(small)
            small, rows = [], 0
        batch = _batch(part, without)
        if count < BATCH_LEAST:
            small.append(batch)
            rows += count
        else:
            for start in range(0, count, BATCH_MOST):
                yield batch.slice(start, BATCH_MOST) if count > BATCH_MOST else batch
    if small:
        yield joined(small)


def _batch(part: Slice, without: list[str]) -> ArrowBatch:
    source = part.source
    if isinstance(source, OpenBlock):
        source = Block.of(source.encode(0))
    assert isinstance(source, Block)
    return picked(block_batch(source, without), part.rows)
