"""The Append frame of one record with data, perhaps a tag and perhaps a key, as most single writes have.

`encode_single` returns the bytes that `block.encode_block` returns for the same record, in a fraction of the time:
columns of one row have fixed shapes.
"""

from struct import Struct

from xxhash import xxh3_64_intdigest

from driftq.storage.blocks.frame import HEAD_BYTES, HEADER, MAGIC, SUM, Kind
from driftq.storage.blocks.frame_columns import KEY, PLAIN, TAG
from driftq.storage.blocks.rows import Row, is_plain

_APPEND = int(Kind.APPEND)
_PADS = [bytes(size) for size in range(8)]
_FLAG = b"\0"
_BEFORE_FLAG = bytes(7)
"""Padding, so that the one flag byte of the record ends the frame."""

# The directory of column sizes, and what follows it up to the first text: validity and offsets of the tag if there is
# one, or the offsets of the data if there is neither a tag nor a key.
_DATA = Struct("<I4xii").pack
_KEYED = Struct("<II").pack
_TAGGED = Struct("<IIB7xii").pack
_TAGGED_AND_KEYED = Struct("<III4xB7xii").pack
_OFFSETS = Struct("<ii").pack
_VALID = 0xFF
_header = HEADER.pack
_sum = SUM.pack


def encode_single(
    row: Row, *, topic_id: int, first_seq: int, ts: int, synced_to: int = 0, key: bytes | None = None
) -> bytes:
    """Return the Append frame of one record."""
    data, tag = row.data, row.tag
    data_bytes = len(data)
    data_size = data_bytes + 8
    end = _PADS[-data_size & 7]
    bits = PLAIN
    if tag is None:
        if key is None:
            body = b"".join((_DATA(data_size, 0, data_bytes), data, end, _BEFORE_FLAG))
        else:
            bits |= KEY
            size = len(key)
            start = _KEYED(size, data_size)
            body = b"".join((start, key, _PADS[-size & 7], _OFFSETS(0, data_bytes), data, end, _BEFORE_FLAG))
    else:
        bits = PLAIN | TAG if is_plain(tag) else TAG
        tag_bytes = len(tag)
        tag_size = tag_bytes + 16
        offsets = _OFFSETS(0, data_bytes)
        if key is None:
            start = _TAGGED(tag_size, data_size, _VALID, 0, tag_bytes)
            body = b"".join((start, tag, _PADS[-tag_size & 7], offsets, data, end, _BEFORE_FLAG))
        else:
            bits |= KEY
            size = len(key)
            start = _TAGGED_AND_KEYED(tag_size, size, data_size, _VALID, 0, tag_bytes)
            pads = _PADS[-tag_size & 7], _PADS[-size & 7]
            body = b"".join((start, tag, pads[0], key, pads[1], offsets, data, end, _BEFORE_FLAG))
    header = _header(MAGIC, HEAD_BYTES + len(body) + 1, _APPEND, bits, 1, topic_id, first_seq, ts, synced_to)
    head_sum = xxh3_64_intdigest(header)
    return b"".join((header, _sum(head_sum), body, _sum(xxh3_64_intdigest(body, head_sum)), _FLAG))
