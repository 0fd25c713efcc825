"""Sort the tags of a sealed segment without holding the interpreter's lock, so that sealing does not delay appends.

The result is the index that `TagIndex.build` makes, computed by Arrow's kernels from the columns of the blocks.
Segments with holes inside or without tags use `TagIndex.build` itself. So does a seal without `hurry` while Arrow is
not loaded: loading Arrow holds the interpreter's lock as long as sorting about thirty segments with `TagIndex.build`.
"""

import sys
from array import array
from collections.abc import Sequence

from driftq.storage.blocks.block import Block
from driftq.storage.blocks.block_arrow import block_arrays
from driftq.storage.segments.tag_index import (
    AMBIGUOUS,
    KEY_BYTES,
    LONG,
    NARROW_ROWS,
    WIDE,
    TagIndex,
    common_prefix,
    tag_rows,
)


def index_blocks(blocks: Sequence[Block], first_seq: int, *, hurry: bool = True) -> TagIndex:
    """Return the tag index of a segment's blocks. For a thread. `hurry`: many more segments are about to come."""
    tagged = [block for block in blocks if block.tag_bytes()]
    contiguous = sum(block.count for block in blocks) == blocks[-1].last_seq + 1 - first_seq
    worth_it = hurry or "pyarrow.compute" in sys.modules
    if len(tagged) != len(blocks) or not contiguous or not worth_it:
        return TagIndex.build(tag_rows(blocks, first_seq))
    import pyarrow as pa
    import pyarrow.compute as pc

    tags = pa.concat_arrays([block_arrays(block)["tag"] for block in blocks]).view(pa.binary())
    order = pc.sort_indices(tags)
    if tags.null_count:
        # Rows without a tag are sorted last.
        order = order.slice(0, len(tags) - tags.null_count)
    names = tags.take(order)
    first, last = names[0].as_py(), names[len(names) - 1].as_py()
    prefix = common_prefix(first, last)
    end = prefix + KEY_BYTES
    parts = pc.binary_slice(names, prefix, end)
    # The ASCII kernel pads any bytes, because it does not look at them.
    padded = pc.ascii_rpad(parts.view(pa.utf8()), KEY_BYTES, padding="\0")
    keys = array("Q", padded.buffers()[2].to_pybytes()[: 8 * len(names)])
    keys.byteswap()
    wide = len(tags) > NARROW_ROWS
    numbers = order.cast(pa.uint32() if wide else pa.uint16())
    rows = array("I" if wide else "H", numbers.buffers()[1].to_pybytes()[: (4 if wide else 2) * len(names)])
    bits = WIDE if wide else 0
    if pc.max(pc.binary_length(names)).as_py() > end:
        bits |= LONG
    if pc.any(pc.ends_with(parts, pattern=b"\0")).as_py():
        bits |= AMBIGUOUS
    return TagIndex(keys, rows, bits, (first, last), prefix)
